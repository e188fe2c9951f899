"""Damaged files made from whole ones: bytes, JSON values and tensors changed at random."""

import bz2
import copy
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NUMBERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**63 - 1,
    -(2**63),
)
REALS = (0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"), -1.0)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**6,
    10**12,
    10**30,
    0.5,
    -1e308,
    "",
    "x" * 300,
    "../../etc/passwd",
    "linear",
    "\u0000\ud83d\ude00<script>",
    [],
    [0],
    [[]],
    {},
    {"mapping": 5},
    {"mapping": [[1]]},
    {"number": "nan"},
    {"function": 3},
)


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Some bytes with one to eight changes; parts of ``others`` may come in."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _change(found, rng, others)
    return bytes(found)


def _change(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    if not data:
        data += bytes([rng.randrange(256)])
        return
    at = rng.randrange(len(data))
    what = rng.randrange(10)
    if what == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif what == 1:
        data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 10, 34, 44, rng.randrange(256)))
    elif what in (2, 3):
        size = rng.choice((1, 2, 4, 8))
        value = rng.choice(NUMBERS) % 2 ** (8 * size)
        order = rng.choice(("little", "big"))
        data[at : at + size] = value.to_bytes(size, order)[: len(data) - at]
    elif what == 4:
        data[at : at + 8] = struct.pack("<d", rng.choice(REALS))[: len(data) - at]
    elif what == 5:
        del data[at : at + rng.choice((1, 2, 8, 64, 1024))]
    elif what == 6:
        data[at:at] = data[at : at + rng.choice((1, 8, 64, 1024))] * rng.choice((1, 2, 50))
    elif what == 7:
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 16))))
    elif what == 8 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        part = other[start : start + rng.choice((4, 32, 256))]
        data[at : at + len(part)] = part
    else:
        del data[at:]


# -- behind checksums: the content changes, and what is computed from it is made to fit -----------


def mutated_gzip(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A gzip file with changed text, or with changed bytes and the sums of what they unpack to."""
    what = rng.random()
    if what < 0.3:
        return mutated(data, rng, others)
    try:
        text = zlib.decompressobj(31).decompress(data, 2**20)
    except zlib.error:
        return mutated(data, rng, others)
    if what < 0.6:
        pressed = zlib.compressobj(rng.randrange(10), wbits=31)
        return _repeated(pressed.compress(mutated(text, rng)) + pressed.flush(), data, rng)
    body = mutated(data[10:-8], rng)  # behind the header of files without a name
    stream = zlib.decompressobj(-15)
    try:
        text = stream.decompress(body, 2**20)
    except zlib.error:
        return data[:10] + body + data[-8:]
    body = body[: len(body) - len(stream.unused_data)]
    return data[:10] + body + struct.pack("<II", zlib.crc32(text), len(text))


def mutated_bzip2(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A bzip2 file with changed bytes or text, or of several streams."""
    if rng.random() < 0.3:
        return mutated(data, rng, others)
    try:
        text = bz2.BZ2Decompressor().decompress(data, 2**20)
    except (OSError, EOFError, ValueError):
        return mutated(data, rng, others)
    return _repeated(bz2.compress(mutated(text, rng), rng.randrange(1, 10)), data, rng)


def _repeated(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    """A stream, sometimes with another or with a damaged one behind it."""
    what = rng.random()
    if what < 0.8:
        return whole
    return whole + (mutated(other, rng) if what < 0.9 else other)


def mutated_zip(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A zip archive with changed bytes, or with a changed member."""
    if rng.random() < 0.4:
        return mutated(data, rng, others)
    found = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(found, "w") as copied:
            items = archive.infolist()[:32]
            changed = rng.choice(items)
            for item in items:
                with archive.open(item) as member:
                    content, name = member.read(2**20), item.filename
                if item is changed:
                    content = mutated(content, rng)
                    name = name if rng.random() < 0.9 else f"../{name}"
                copied.writestr(name, content, method)
    except Exception:  # an earlier change broke the archive
        return mutated(data, rng, others)
    return found.getvalue()


HEADERS = 3 * 4096  # bytes of DuckDB's three headers, each with a checksum
BLOCK = 16384  # that of `fuzz.targets.make_duckdb`
FACTOR = np.uint64(0xBF58476D1CE4E5B9)


def mutated_duckdb(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A DuckDB file with changed bytes, mostly with checksums that fit them."""
    found = mutated(data, rng, others)
    if rng.random() < 0.2:
        return found
    fixed = bytearray(found)
    starts = [(at, 4096) for at in range(0, HEADERS, 4096)]
    starts += [(at, BLOCK) for at in range(HEADERS, len(fixed), BLOCK)]
    for at, size in starts:
        if at + size <= len(fixed):
            words = np.frombuffer(fixed[at + 8 : at + size], "<u8")
            with np.errstate(over="ignore"):
                sums = int(np.bitwise_xor.reduce(words * FACTOR)) ^ 5381
            fixed[at : at + 8] = sums.to_bytes(8, "little")
    return bytes(fixed)


# -- folders: several files as one string of bytes --------------------------------------------


def pack(files: dict[str, bytes]) -> bytes:
    """Files of a folder as one string of bytes."""
    parts = []
    for name, content in sorted(files.items()):
        head = name.encode()[: 2**16 - 1]  # bytes that were not UTF-8 have become longer
        parts.append(struct.pack("<HI", len(head), len(content)) + head + content)
    return b"".join(parts)


def unpack(data: bytes) -> dict[str, bytes]:
    """The files that `pack` packed; what does not fit is left out."""
    files, at = {}, 0
    while at + 6 <= len(data):
        head, size = struct.unpack_from("<HI", data, at)
        name = data[at + 6 : at + 6 + head].decode(errors="replace")
        files[name] = data[at + 6 + head : at + 6 + head + size]
        at += 6 + head + size
    return files


def mutated_folder(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A folder with one file changed: as bytes, as JSON, or as safetensors."""
    files = unpack(data)
    if not files:
        return mutated(data, rng, others)
    name = rng.choice(sorted(files))
    change: Callable[[bytes, random.Random], bytes] = mutated
    if name.endswith((".json", ".zarray", ".zattrs", ".zgroup")) and rng.random() < 0.9:
        change = mutated_json
    elif name.endswith(".safetensors") and rng.random() < 0.9:
        change = mutated_tensors
    try:
        files[name] = change(files[name], rng)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        files[name] = mutated(files[name], rng)  # JSON that an earlier change bent out of shape
    if rng.random() < 0.02:
        del files[name]
    return pack(files)


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """JSON with some of its values changed, removed or added."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return mutated(data, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        document = _mutated_value(document, rng)
    return json.dumps(document).encode()


def _mutated_value(value: Any, rng: random.Random) -> Any:
    inner = bool(value) and isinstance(value, (dict, list)) and rng.random() < 0.9
    if not inner:
        if rng.random() < 0.02:
            for _ in range(rng.choice((20, 40, 500))):
                value = [value]
            return value
        return copy.deepcopy(rng.choice(VALUES))
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    what = rng.random()
    if what < 0.1:
        del value[key]
    elif what < 0.15 and isinstance(value, list):
        value.extend(value[:8] * rng.choice((1, 100)))
    elif what < 0.15:
        value[rng.choice(("X", "version", "decoder"))] = copy.deepcopy(value[key])
    else:
        value[key] = _mutated_value(value[key], rng)
    return value


def mutated_tensors(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with a changed header, or with changed values."""
    size = int.from_bytes(data[:8], "little")
    header, values = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.5:
        spoiled = bytearray(values)
        for _ in range(rng.choice((1, 4))):
            if len(spoiled) >= 8:
                at = 8 * rng.randrange(len(spoiled) // 8)
                new = struct.pack("<d", rng.choice(REALS))
                spoiled[at : at + 8] = rng.choice(
                    (new, rng.choice(NUMBERS).to_bytes(8, "little", signed=True))
                )
        values = bytes(spoiled)
    else:
        header = _mutated_header(header, rng)
    return len(header).to_bytes(8, "little") + header + values


def _mutated_header(data: bytes, rng: random.Random) -> bytes:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        return mutated(data, rng)
    names = [name for name in header if name != "__metadata__"]
    what = rng.random()
    if "__metadata__" in header and what < 0.4:
        notes = header["__metadata__"].get("notes", "{}")
        header["__metadata__"]["notes"] = mutated_json(notes.encode(), rng).decode(errors="replace")
    elif names and what < 0.6:
        header[rng.choice(("extra", "decoder.extra", rng.choice(names)))] = header.pop(
            rng.choice(names)
        )
    elif names and what < 0.9:
        one = header[rng.choice(names)]
        if rng.random() < 0.5:
            one["dtype"] = rng.choice(("F64", "F32", "I64", "BOOL", "U8", "BF16", "F8_E4M3", "C64"))
        else:
            one["shape"] = rng.choice((one["shape"][::-1], [*one["shape"], 1], [0], [2**40], []))
    else:
        return mutated_json(data, rng)
    return json.dumps(header).encode()
