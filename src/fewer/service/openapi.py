"""The description of the service, in the terms of OpenAPI 3.1."""

from typing import Any

from fewer import __version__
from fewer.panel import Panel

__all__ = ["document"]

Json = dict[str, Any]
NUMBER = {"type": "number"}
MISSING = {"type": ["number", "null"]}


def document(panel: Panel, most_rows: int, most_bytes: int) -> Json:
    """The OpenAPI document of the service of a panel."""
    keys = [str(name) for name in panel.features]
    means = [float(f"{value:.4g}") for value in panel.reconstructor.decoder.fill.tolist()]
    by_name = {
        "type": "object",
        "description": "Values by feature name; null if not measured. Other names are ignored.",
        "properties": {name: MISSING for name in keys},
        "required": keys,
    }
    in_order = {
        "type": "array",
        "description": f"Values in this order: {', '.join(keys)}; null if not measured.",
        "items": MISSING,
        "minItems": len(keys),
        "maxItems": len(keys),
    }
    rows = {
        "description": "All rows as objects, or all as arrays.",
        "oneOf": [_rows("RowByName", most_rows), _rows("RowInOrder", most_rows)],
    }
    interval = {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "maximum": 0.99,
        "description": "Also return bounds that contain this share of new values, such as 0.9.",
    }
    example = [dict(zip(keys, means, strict=True))]
    paths = {
        "/reconstruct": _post(
            "Reconstruct all features",
            f"All {panel.d} features of each row, from the {panel.k} measured ones, which are "
            "returned unchanged. What was not measured is predicted from the rest.",
            {"rows": rows, "interval": interval},
            {"rows": example, "interval": 0.9},
            "Reconstruction",
        ),
        "/check": _post(
            "Check rows",
            "Whether rows are like those that the panel was made from: other units, shifts, codes "
            "for missing values, and how unusual each row is.",
            {"rows": rows},
            {"rows": example},
            "Check",
        ),
    }
    schemas: Json = {
        "RowByName": by_name,
        "RowInOrder": in_order,
        "Reconstruction": _reconstruction(panel.d),
        "Check": CHECK,
        "Health": HEALTH,
        "Error": _object({"error": {"type": "string"}}),
    }
    if panel.target is not None:
        wanted = {"type": "boolean", "description": "Also return the probability of each class."}
        paths["/predict"] = _post(
            f"Predict {panel.target.name or 'the target'}",
            "A class or a number per row.",
            {"rows": rows, "interval": interval, "probabilities": wanted},
            {"rows": example},
            "Prediction",
        )
        schemas["Prediction"] = _prediction(panel)
    paths["/health"] = {
        "get": {
            "summary": "Whether the service runs, and what it measures",
            "operationId": "health",
            "responses": {"200": _answer("The service runs.", "Health")},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"A panel of {panel.k} of {panel.d} features",
            "version": __version__,
            "description": f"At most {most_rows:,} rows and {most_bytes:,} bytes per request.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _rows(kind: str, most: int) -> Json:
    return {"type": "array", "items": _reference(kind), "minItems": 1, "maxItems": most}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Json, optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _answer(what: str, name: str) -> Json:
    return {"description": what, "content": {"application/json": {"schema": _reference(name)}}}


def _post(summary: str, description: str, properties: Json, example: Json, answer: str) -> Json:
    schema = _object(properties, tuple(name for name in properties if name != "rows"))
    errors = {
        "400": "The body is not JSON.",
        "408": "The body did not arrive in time.",
        "413": "Too many rows or bytes.",
        "415": "The body is not of the type application/json.",
        "422": "The rows cannot be used; the error says why.",
    }
    return {
        "post": {
            "summary": summary,
            "description": description,
            "operationId": answer.lower(),
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": schema | {"additionalProperties": False},
                        "example": example,
                    }
                },
            },
            "responses": {
                "200": _answer("The result.", answer),
                **{status: _answer(what, "Error") for status, what in errors.items()},
            },
        }
    }


def _reconstruction(d: int) -> Json:
    row = {
        "oneOf": [
            {"type": "object", "additionalProperties": MISSING},
            {"type": "array", "items": MISSING, "minItems": d, "maxItems": d},
        ]
    }
    rows = {"type": "array", "items": row}
    names = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Order of the values, where rows are arrays.",
    }
    parts = {"features": names, "rows": rows, "lower": rows, "upper": rows}
    return _object(parts, ("features", "lower", "upper"))


def _prediction(panel: Panel) -> Json:
    assert panel.target is not None
    name = {"type": "string"}
    if panel.target.parts:  # objects by target
        titles = ("predictions", "lower", "upper", "sets", "probabilities")
        objects = {title: {"type": "object"} for title in titles}
        return _object({"target": name, **objects}, titles[1:])
    if panel.target.classes is None:
        one = {"oneOf": [MISSING, {"type": "array", "items": MISSING}]}
        part = {"type": "array", "items": one}
        parts = {"target": name, "predictions": part, "lower": part, "upper": part}
        return _object(parts, ("lower", "upper"))
    label = {"enum": panel.target.classes.tolist()}
    return _object(
        {
            "target": name,
            "predictions": {"type": "array", "items": label},
            "sets": {"type": "array", "items": {"type": "array", "items": label}},
            "probabilities": {
                "type": "array",
                "items": {"type": "object", "additionalProperties": NUMBER},
            },
        },
        ("sets", "probabilities"),
    )


FINDING = _object(
    {
        "feature": {"type": ["string", "integer", "null"]},
        "kind": {"type": "string"},
        "message": {"type": "string"},
        "p": NUMBER,
    }
)
CHECK = _object(
    {
        "ok": {"type": "boolean"},
        "rows": {"type": "integer"},
        "summary": {"type": "string"},
        "findings": {"type": "array", "items": FINDING},
        "features": {"type": "array", "items": {"type": "object"}},
        "unusual_rows": {"type": "integer"},
        "expected_error": MISSING,
        "per_row": {
            "type": "array",
            "items": _object({"distance": MISSING, "p": MISSING, "expected_error": MISSING}),
        },
    }
)
HEALTH = _object(
    {
        "status": {"const": "ok"},
        "fewer": {"type": "string"},
        "features": {"type": "array", "items": {"type": "string"}},
        "reconstructs": {"type": "integer"},
        "target": {"type": ["string", "null"]},
        "limits": _object({"rows": {"type": "integer"}, "bytes": {"type": "integer"}}),
    }
)
