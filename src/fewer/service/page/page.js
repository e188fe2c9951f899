"use strict";

const at = (id) => document.getElementById(id);

function made(kind, text, name) {
  const node = document.createElement(kind);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
}

function number(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(5))) : value === null ? "" : String(value);
}

function table(titles, rows) {
  const box = made("div", undefined, "scroll"), found = made("table"), head = made("tr");
  titles.forEach((title) => head.append(made("th", title)));
  found.append(head);
  rows.forEach(({ cells, name }) => {
    const line = made("tr", undefined, name);
    cells.forEach((cell, j) => line.append(made("td", j ? number(cell) : cell, j ? "number" : "")));
    found.append(line);
  });
  box.append(found);
  return box;
}

function values() {
  const row = {};
  for (const field of at("form").elements) {
    const text = field.value.trim().replace(",", ".");
    if (text && !Number.isFinite(Number(text))) throw new Error(`${field.name}: “${field.value}” is not a number`);
    row[field.name] = text ? Number(text) : null;
  }
  return row;
}

async function post(path, extra) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ rows: [values()], ...extra }),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

const shown = {
  "/reconstruct": async () => {
    const found = await post("reconstruct", { interval: 0.9 });
    const given = values();
    return table(["feature", "value", "from", "to (90%)"], Object.keys(found.rows[0]).map((name) => ({
      cells: [name, found.rows[0][name], found.lower[0][name], found.upper[0][name]],
      name: given[name] === null || given[name] === undefined ? "" : "measured",
    })));
  },
  "/predict": async () => {
    const found = await post("predict", {});
    const several = Array.isArray(found.predictions) ? { [found.target]: found.predictions } : found.predictions;
    return table(["target", "prediction"], Object.entries(several).map(([name, values]) => ({
      cells: [name, [values[0]].flat().map(number).join(", ")],
    })));
  },
  "/check": async () => {
    const found = await post("check", {}), row = found.per_row[0], box = made("div");
    found.findings.forEach((one) => box.append(made("p", (one.feature === null ? "" : `${one.feature}: `) + one.message)));
    box.append(made("p", `p = ${number(row.p)}: the share of training rows that are at least as unusual as this one`));
    return box;
  },
};

function button(path, summary) {
  const node = made("button", summary);
  node.type = "button";
  node.addEventListener("click", async () => {
    let result;
    try {
      result = await shown[path]();
    } catch (error) {
      result = made("p", error.message, "error");
    }
    at("result").replaceChildren(result);
  });
  return node;
}

function described(path, method, about) {
  const box = made("details"), title = made("summary");
  title.append(made("code", `${method.toUpperCase()} ${path}`), ` ${about.summary}`);
  box.append(title);
  if (about.description) box.append(made("p", about.description));
  if (about.requestBody) {
    const example = about.requestBody.content["application/json"].example;
    const body = JSON.stringify(example).replaceAll("'", "'\\''");
    const url = new URL(path.slice(1), location.href).href;
    box.append(made("pre", `curl ${url} -H 'Content-Type: application/json' \\\n  -d '${body}'`));
  }
  box.append(table(["status", "meaning"], Object.entries(about.responses).map(([status, one]) => ({
    cells: [status, one.description],
  }))));
  return box;
}

async function start() {
  const api = await (await fetch("openapi.json")).json();
  const health = await (await fetch("health")).json();
  at("title").textContent = api.info.title;
  at("about").textContent = `${api.info.description} fewer ${health.fewer}.`;
  const example = api.paths["/reconstruct"].post.requestBody.content["application/json"].example.rows[0];
  for (const name of health.features) {
    const label = made("label", name), field = made("input");
    field.name = name;
    field.inputMode = "decimal";
    field.placeholder = String(example[name]);
    label.append(field);
    at("form").append(label);
  }
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      if (shown[path]) at("buttons").append(button(path, about.summary));
      at("paths").append(described(path, method, about));
    }
  }
}

at("form").addEventListener("submit", (event) => event.preventDefault());
start().catch((error) => at("result").replaceChildren(made("p", error.message, "error")));
