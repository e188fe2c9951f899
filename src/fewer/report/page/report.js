"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const nameOf = (j) => (data.names ? data.names[j] : String(j));
  const inWords = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const STEP = 100; // rows that a long table grows by
  const chosen = new Set(data.chosen);

  // Missing values come last in both directions.
  function compare(a, b, direction) {
    const none = (x) => x === null || x === undefined || x === "" || x === "–";
    if (none(a) || none(b)) return none(a) - none(b);
    return direction * (typeof a === "number" ? a - b : inWords.compare(a, b));
  }

  // A click on a heading sorts by it, a second click reverses the order.
  function sortable(table, sort) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        sort(column, up ? 1 : -1, button.dataset.kind);
      });
    });
  }

  function counted(shown, all, found) {
    const say = (x) => x.toLocaleString("en");
    return found < all
      ? `${say(shown)} of ${say(found)} matches among ${say(all)} features`
      : shown < all ? `${say(shown)} of ${say(all)} features` : `${say(all)} features`;
  }

  // -- chosen features: all rows are in the page ---------------------------------------------

  const board = byId("chosen-table").tBodies[0];
  sortable(byId("chosen-table"), (column, direction, kind) => {
    const value = (row) => {
      const cell = row.cells[column];
      if (kind === "text") return cell.textContent.trim();
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    [...board.rows].sort((a, b) => compare(value(a), value(b), direction)).forEach((row) => board.append(row));
  });
  byId("chosen-search").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    let found = 0;
    for (const row of board.rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      found += !row.hidden;
    }
    byId("chosen-count").textContent = counted(found, board.rows.length, found);
  });

  // -- all features: rows are created on demand -----------------------------------------

  const columns = [nameOf, (j) => data.r2[j], (j) => data.error[j], (j) => data.std[j]];
  const list = { column: 1, direction: 1, wanted: "", limit: STEP, picked: null };
  const body = byId("features-table").tBodies[0];
  const lower = Array.from({ length: data.d }, (_, j) => nameOf(j).toLowerCase());

  const minus = (text) => text.replaceAll("-", "−");

  function short(x) {
    if (x === null) return "–";
    if (x === 0) return "0";
    if (Math.abs(x) < 1e-4 || Math.abs(x) >= 1e6) return minus(x.toExponential(2));
    return minus(x.toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 }));
  }

  const inShort = (r2) => (r2 < -10 ? "below −10" : minus(r2.toFixed(3)));

  function cell(text) {
    const made = document.createElement("td");
    made.className = "number";
    made.textContent = text;
    return made;
  }

  function featureRow(j) {
    const row = document.createElement("tr");
    row.dataset.feature = j;
    if (j === list.picked) row.className = "picked";
    const head = document.createElement("th");
    head.scope = "row";
    const pick = document.createElement(data.rows ? "button" : "span");
    if (data.rows) {
      pick.type = "button";
      pick.className = "pick";
      pick.setAttribute("aria-pressed", j === list.picked);
    }
    pick.textContent = nameOf(j);
    head.append(pick);
    if (chosen.has(j)) {
      const badge = document.createElement("span");
      badge.className = "badge";
      badge.textContent = "measured";
      head.append(badge);
    }
    const r2 = data.r2[j];
    row.append(head, cell(r2 === null ? "–" : inShort(r2)), cell(short(data.error[j])), cell(short(data.std[j])));
    return row;
  }

  function showFeatures() {
    const key = columns[list.column];
    const found = [];
    for (let j = 0; j < data.d; j++) if (lower[j].includes(list.wanted)) found.push(j);
    found.sort((a, b) => compare(key(a), key(b), list.direction) || a - b);
    const shown = found.slice(0, list.limit);
    body.replaceChildren(...shown.map(featureRow));
    byId("features-count").textContent = counted(shown.length, data.d, found.length);
    byId("features-more").hidden = shown.length === found.length;
    return found;
  }

  sortable(byId("features-table"), (column, direction) => {
    Object.assign(list, { column, direction, limit: STEP });
    showFeatures();
  });
  byId("features-search").addEventListener("input", (event) => {
    Object.assign(list, { wanted: event.target.value.trim().toLowerCase(), limit: STEP });
    showFeatures();
  });
  byId("features-more").addEventListener("click", () => {
    const next = list.limit;
    list.limit += STEP;
    showFeatures();
    body.rows[next]?.querySelector("button")?.focus(); // the reader continues where the list ended
  });
  body.addEventListener("click", (event) => {
    const pick = event.target.closest(".pick");
    if (!pick) return;
    choose(Number(pick.closest("tr").dataset.feature));
    const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches;
    byId("scatter").scrollIntoView({ block: "nearest", behavior: quiet ? "auto" : "smooth" });
  });

  function choose(j) {
    list.picked = j;
    for (const row of body.rows) {
      const mine = Number(row.dataset.feature) === j;
      row.classList.toggle("picked", mine);
      row.querySelector(".pick")?.setAttribute("aria-pressed", mine);
    }
    drawScatter(j);
  }

  // -- predicted against true ------------------------------------------------------------------

  let codes = null;
  function valuesOf(j) {
    if (!codes) {
      const bytes = Uint8Array.from(atob(data.rows.codes), (letter) => letter.charCodeAt(0));
      codes = data.rows.bytes === 2 ? new Uint16Array(bytes.buffer) : bytes;
    }
    const { count, low, high } = data.rows;
    const missing = data.rows.bytes === 2 ? 65535 : 255;
    const value = (code) => (code === missing ? null : low[j] + (code / (missing - 1)) * (high[j] - low[j]));
    const start = 2 * count * j;
    const pairs = [];
    for (let i = 0; i < count; i++) {
      const pair = [value(codes[start + i]), value(codes[start + count + i])];
      if (pair[0] !== null && pair[1] !== null) pairs.push(pair);
    }
    return pairs;
  }

  function ticks(low, high) {
    const rough = (high - low) / 6;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((x) => x * power >= rough) * power;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const plain = digits <= 4 && high < 1e6 && low > -1e6;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
      const x = i * step;
      found.push([x, plain ? minus(x.toFixed(digits)) : short(Number(x.toPrecision(6)))]);
    }
    return found;
  }

  function svg(kind, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function drawScatter(j) {
    const figure = byId("scatter");
    const pairs = valuesOf(j);
    const r2 = data.r2[j];
    const said = r2 === null ? "constant" : `R² ${inShort(r2)}, RMSE ${short(data.error[j])}, std ${short(data.std[j])}`;
    const caption = figure.querySelector("figcaption");
    const strong = document.createElement("strong");
    strong.textContent = nameOf(j);
    caption.replaceChildren(strong, `: ${said}; ${pairs.length} rows${chosen.has(j) ? "; measured" : ""}.`);
    const [left, right, top, bottom] = [52, 372, 8, 256];
    let low = data.rows.low[j];
    let high = data.rows.high[j];
    if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
    const x = (v) => left + ((v - low) / (high - low)) * (right - left);
    const y = (v) => bottom - ((v - low) / (high - low)) * (bottom - top);
    const parts = [svg("title", {}, `Predicted against true values of ${nameOf(j)}: ${said}`)];
    for (const [t, label] of ticks(low, high)) {
      parts.push(svg("path", { class: "grid", d: `M${left} ${y(t)}H${right}` }));
      parts.push(svg("text", { class: "tick end", x: left - 6, y: y(t) + 4 }, label));
      parts.push(svg("text", { class: "tick mid", x: x(t), y: bottom + 16 }, label));
    }
    parts.push(svg("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
    parts.push(svg("path", { class: "same", d: `M${left} ${bottom}L${right} ${top}` }));
    for (const [a, b] of pairs) parts.push(svg("circle", { class: "point", cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 3 }));
    parts.push(svg("text", { class: "label mid", x: (left + right) / 2, y: 294 }, "true value"));
    parts.push(svg("text", { class: "label mid", transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)` }, "predicted"));
    figure.querySelector("svg").replaceChildren(...parts);
  }

  // -- correlations: the cell under the pointer --------------------------------------------------

  byId("map")?.addEventListener("pointermove", (event) => {
    const size = data.map.length;
    const box = event.target.getBoundingClientRect();
    const at = (place, begin, length) => Math.min(size - 1, Math.max(0, Math.floor(((place - begin) / length) * size)));
    const row = at(event.clientY, box.top, box.height);
    const column = at(event.clientX, box.left, box.width);
    const value = (data.map[row][column] / 100).toFixed(2).replace("-", "−");
    byId("map-cell").textContent = `${nameOf(data.order[row])} and ${nameOf(data.order[column])}: ${value}`;
  });

  // -- start -----------------------------------------------------------------------------------

  const found = showFeatures();
  const open = found.filter((j) => data.r2[j] !== null && !chosen.has(j));
  if (data.rows && found.length) choose(open.length ? open[open.length >> 1] : found[0]);

  // paper can be neither scrolled nor searched
  let screen = null;
  addEventListener("beforeprint", () => {
    screen = { limit: list.limit, wanted: list.wanted };
    Object.assign(list, { limit: Math.max(list.limit, 1000), wanted: "" });
    showFeatures();
  });
  addEventListener("afterprint", () => {
    Object.assign(list, screen);
    showFeatures();
  });
})();
