"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const PAGE = 100;
  // Viridis (van der Walt and Smith, 2015), ten stops.
  const COLOURS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
  const DASH = "–";

  // ---- elements: text is always set as text, never as markup --------------------------------------------------------------------
  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
      else if (value !== null && value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  };
  const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const s = (name, attributes, ...children) => fill(document.createElementNS(NS, name), attributes, children);
  const option = (value, text, selected) => h("option", { value, selected }, text);

  // ---- numbers -------------------------------------------------------------------------------------------------------------------
  const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
  const finite = (value) => value !== null && value !== undefined;

  // One unit and one number of digits for a whole column: it is there to be compared.
  const prepare = (measure) => {
    const sizes = measure.values.filter(finite).map(Math.abs);
    const least = Math.min(...sizes.filter((size) => size > 0)), most = Math.max(...sizes);
    let scale = 1, unit = "";
    if (measure.kind === "seconds") {
      [scale, unit] = least >= 10800 ? [3600, "h"] : least >= 180 ? [60, "min"] : least >= 1 ? [1, "s"] : least >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
      if (!Number.isFinite(least)) [scale, unit] = [1, "s"];
    } else if (measure.kind === "share" || measure.kind === "signed_share") [scale, unit] = [0.01, "%"];
    else if (measure.kind === "ratio") unit = "×";
    const whole = measure.values.every((value) => !finite(value) || Number.isInteger(value));
    const top = most / scale;
    const digits = (measure.kind === "count" || (measure.kind === "number" && whole)) && whole ? 0 : !(top > 0) ? 1 : Math.min(4, Math.max(0, 3 - Math.floor(Math.log10(top))));
    return { ...measure, scale, unit, digits };
  };
  const bare = (measure, value) => {
    if (!finite(value)) return DASH;
    const shown = grouped(value / measure.scale, measure.digits);
    return measure.kind === "signed_share" && value > 0 && Number(shown.replace(/,/g, "")) !== 0 ? `+${shown}` : shown;
  };
  const withUnit = (measure, value) => (finite(value) ? bare(measure, value) + (measure.unit === "×" ? "×" : measure.unit ? ` ${measure.unit}` : "") : DASH);
  const between = (measure, low, high, row) => (low && high && finite(low[row]) && finite(high[row]) ? `[${bare(measure, low[row])}, ${bare(measure, high[row])}]` : "");
  // Of the rollouts, then of the machine.
  const interval = (measure, row) => {
    const machine = between(measure, measure.machine_low, measure.machine_high, row);
    return [between(measure, measure.low, measure.high, row), machine && `machine ${machine}`].filter(Boolean).join(" ");
  };
  const headed = (measure) => (measure.unit ? `${measure.label} (${measure.unit})` : measure.label);

  // "<= 2", "> 1.2", "5", "2..5": a test of a number in the unit shown; undefined: not understood.
  const condition = (text) => {
    const clean = text.replace(/[%×,\s]/g, "").replace(/−/g, "-").replace("≤", "<=").replace("≥", ">=");
    if (!clean) return null;
    const between = clean.match(/^(-?[\d.]+)\.\.(-?[\d.]+)$/);
    if (between && !isNaN(between[1]) && !isNaN(between[2])) return (value) => value >= Number(between[1]) && value <= Number(between[2]);
    const one = clean.match(/^(<=|>=|<|>|=)?(-?[\d.]+(?:e-?\d+)?)$/i);
    if (!one || isNaN(one[2])) return undefined;
    const limit = Number(one[2]);
    return { "<=": (v) => v <= limit, ">=": (v) => v >= limit, "<": (v) => v < limit, ">": (v) => v > limit, "=": (v) => Math.abs(v - limit) <= 1e-9 * Math.max(1, Math.abs(limit)) }[one[1] || "="];
  };

  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, `'"'"'`)}'`);
  const copyBlock = (text, label) => h("div", { class: "code" }, h("button", { type: "button", class: "copy", on: { click: copy } }, "Copy"), h("pre", { tabindex: 0, "aria-label": label }, text));
  async function copy(event) {
    const button = event.currentTarget, block = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    } catch {
      // No clipboard for this page: leave the text selected.
      const range = document.createRange();
      range.selectNodeContents(block);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1600);
  }

  // ---- one set of points ---------------------------------------------------------------------------------------------------------
  class Explorer {
    constructor(data, heat, table) {
      Object.assign(this, data);
      this.measures = data.measures.map(prepare);
      this.count = data.axes.length ? data.axes[0].at.length : 0;
      this.inRegion = new Set(data.region);
      this.bounds = new Set(data.bounds);
      this.conditions = new Map();
      this.passing = new Set(Array.from({ length: this.count }, (_, row) => row));
      this.heat = heat && data.heat ? new Heat(this, heat) : null;
      this.table = table ? new Table(this, table) : null;
    }
    setting(row, axis) { return axis.values[axis.at[row]]; }
    failed(row) { return this.status !== null && this.status[row] === "failed"; }
    title(row, without = []) {
      return this.axes.filter((axis) => !without.includes(axis) && !axis.missing[axis.at[row]]).map((axis) => `${axis.label.replace(/ \(.*\)$/, "")} ${this.setting(row, axis)}`).join(", ");
    }
    overrides(row) {
      const own = this.axes.filter((axis) => !axis.missing[axis.at[row]]).map((axis) => `--set ${quoted(`${axis.field}=${axis.texts[axis.at[row]]}`)}`);
      return [this.fixed, ...own].filter(Boolean).join(" \\\n");
    }
    filter(key, test) {
      if (test) this.conditions.set(key, test); else this.conditions.delete(key);
      this.passing = new Set();
      for (let row = 0; row < this.count; row++) if ([...this.conditions.values()].every((passes) => passes(row))) this.passing.add(row);
      if (this.table) this.table.draw();
      if (this.heat) this.heat.dim();
    }
  }

  // ---- heat map ------------------------------------------------------------------------------------------------------------------
  const colour = (share) => {
    const at = Math.min(1, Math.max(0, share)) * (COLOURS.length - 1), low = Math.min(COLOURS.length - 2, Math.floor(at));
    const mix = [1, 3, 5].map((place) => {
      const [from, to] = [COLOURS[low], COLOURS[low + 1]].map((text) => parseInt(text.slice(place, place + 2), 16));
      return Math.round(from + (to - from) * (at - low));
    });
    return `rgb(${mix.join(",")})`;
  };
  const star = (x, y, size) =>
    Array.from({ length: 10 }, (_, at) => {
      const reach = at % 2 ? size * 0.42 : size, angle = (Math.PI / 5) * at - Math.PI / 2;
      return `${(x + reach * Math.cos(angle)).toFixed(1)},${(y + reach * Math.sin(angle)).toFixed(1)}`;
    }).join(" ");

  class Heat {
    constructor(points, root) {
      this.points = points;
      [this.controls, this.map, this.picked, this.still] = ["controls", "map", "picked", "static"].map((name) => root.querySelector(`.${name}`));
      const byField = (field) => points.axes.find((axis) => axis.field === field);
      this.x = byField(points.heat[0]);
      this.y = byField(points.heat[1]);
      this.measure = points.measures.find((measure) => measure.column === points.objective) || points.measures[0];
      this.held = new Map(points.axes.map((axis) => [axis, axis.at[points.best === null ? 0 : points.best]]));
      this.chosen = null;
      this.tip = h("div", { class: "tip", role: "tooltip", hidden: true });
      document.body.append(this.tip);
      for (const part of [this.controls, this.map]) part.hidden = false;
      if (this.still) this.still.hidden = true;
      this.offer();
      this.draw();
    }
    offer() {
      const { points } = this, many = points.axes.filter((axis) => axis.values.length > 1);
      const choose = (label, items, current, pick) =>
        h("label", {}, label, h("select", { on: { change: (event) => { pick(Number(event.target.value)); this.offer(); this.draw(); } } }, ...items.map(([value, text]) => option(value, text, value === current))));
      const axisItems = many.map((axis) => [points.axes.indexOf(axis), axis.label]);
      const swap = (mine, other) => (at) => {
        if (points.axes[at] === this[other]) this[other] = this[mine];
        this[mine] = points.axes[at];
      };
      this.controls.replaceChildren(
        choose("colour", points.measures.map((measure, at) => [at, headed(measure)]), points.measures.indexOf(this.measure), (at) => (this.measure = points.measures[at])),
        choose("across", axisItems, points.axes.indexOf(this.x), swap("x", "y")),
        choose("upwards", axisItems, points.axes.indexOf(this.y), swap("y", "x")),
        ...many.filter((axis) => axis !== this.x && axis !== this.y).map((axis) => choose(axis.label, axis.values.map((value, at) => [at, value]), this.held.get(axis), (at) => this.held.set(axis, at))),
      );
    }
    rows() {
      const others = this.points.axes.filter((axis) => axis !== this.x && axis !== this.y);
      const found = [];
      for (let row = 0; row < this.points.count; row++) if (others.every((axis) => axis.at[row] === this.held.get(axis))) found.push(row);
      return found;
    }
    draw() {
      const { points, measure, x, y } = this, rows = this.rows(), nx = x.values.length, ny = y.values.length;
      const key = (row) => (measure.better === "zero" ? Math.abs(measure.values[row]) : measure.values[row]);
      const known = rows.filter((row) => finite(measure.values[row]));
      const real = known.filter((row) => !points.bounds.has(row));
      const low = Math.min(...known.map(key)), high = Math.max(...known.map(key));
      const brightLow = measure.better === "low" || measure.better === "zero";
      const share = (row) => { const at = high > low ? (key(row) - low) / (high - low) : 0.5; return brightLow ? 1 - at : at; };
      const best = measure.column === points.objective && known.includes(points.best) ? points.best : measure.better ? (real.length ? real : known).reduce((top, row) => (top === null || share(row) > share(top) ? row : top), null) : null;

      const left = 30 + 7 * Math.max(...y.values.map((value) => value.length)), right = 110, top = 8, bottom = 46, width = 1000;
      const cw = (width - left - right) / nx, ch = Math.min(36, Math.max(17, 420 / ny)), height = top + ch * ny + bottom;
      const px = (row) => left + cw * x.at[row], py = (row) => top + ch * (ny - 1 - y.at[row]);
      const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Heat map of ${measure.label}: ${x.label} across, ${y.label} upwards. Arrow keys move between cells, Enter chooses one.` });
      this.cells = new Map();
      for (const row of rows) {
        const value = measure.values[row], failed = !finite(value);
        const cell = s("rect", {
          class: failed ? "cell failed" : "cell", x: px(row).toFixed(2), y: py(row).toFixed(2), width: (cw + 0.3).toFixed(2), height: (ch + 0.3).toFixed(2), fill: failed ? null : colour(share(row)),
          tabindex: row === (best === null ? rows[0] : best) ? 0 : -1, role: "button", "data-row": row, "aria-label": `${x.label} ${points.setting(row, x)}, ${y.label} ${points.setting(row, y)}: ${failed ? "failed" : withUnit(measure, value)}`,
          on: {
            pointermove: (event) => this.show(row, event.clientX, event.clientY), pointerleave: () => (this.tip.hidden = true),
            focus: (event) => { const box = event.target.getBoundingClientRect(); this.show(row, box.right, box.bottom); }, blur: () => (this.tip.hidden = true),
            click: () => this.choose(row), keydown: (event) => this.key(event, row),
          },
        });
        this.cells.set(row, cell);
        svg.append(cell);
      }
      if (nx * ny <= 120 && cw >= 44) {
        for (const row of known) {
          const dark = share(row) > 0.55;
          svg.append(s("text", { x: px(row) + cw / 2, y: py(row) + ch / 2 + 4, "text-anchor": "middle", "pointer-events": "none", style: `fill:${dark ? "#212121" : "#fefefe"}` }, bare(measure, measure.values[row])));
        }
      }
      if (measure.column === points.objective && points.region.length > 1) this.outline(svg, rows, px, py, cw, ch);
      if (best !== null) svg.append(s("polygon", { class: "star", points: star(px(best) + cw / 2 - (nx * ny <= 120 && cw >= 44 ? cw / 2 - 9 : 0), py(best) + ch / 2, 8) }));
      this.axisLabels(svg, { left, top, cw, ch, nx, ny, width, right, height });
      if (known.length) this.legend(svg, { at: width - right + 18, top, tall: ch * ny, low, high, brightLow });
      this.ring = s("rect", { class: "chosen", width: cw, height: ch, visibility: "hidden" });
      svg.append(this.ring);
      this.place = (row) => { this.ring.setAttribute("x", px(row)); this.ring.setAttribute("y", py(row)); this.ring.setAttribute("visibility", "visible"); };
      if (this.chosen !== null && this.cells.has(this.chosen)) this.place(this.chosen);
      this.map.replaceChildren(svg, this.caption(known, best));
      this.dim();
    }
    caption(known, best) {
      const { points, measure } = this;
      if (!known.length) return h("p", {}, "No point of this slice has the measure.");
      const parts = [best === null ? "" : `★ ${this.held && measure.better === "zero" ? "nearest to zero" : "best"} here: ${withUnit(measure, measure.values[best])}`];
      if (measure.column === points.objective && points.region.length > 1) parts.push("outlined: cannot be told apart from the best (paired, 95 %)");
      if (known.length < this.rows().length) parts.push("grey: failed");
      return h("p", { class: "interval" }, parts.filter(Boolean).join(" · "));
    }
    outline(svg, rows, px, py, cw, ch) {
      const at = new Map(rows.map((row) => [`${this.x.at[row]},${this.y.at[row]}`, this.points.inRegion.has(row)]));
      let path = "";
      for (const row of rows) {
        if (!this.points.inRegion.has(row)) continue;
        const [i, j, left, top] = [this.x.at[row], this.y.at[row], px(row), py(row)];
        if (!at.get(`${i},${j + 1}`)) path += `M${left},${top}h${cw}`;
        if (!at.get(`${i},${j - 1}`)) path += `M${left},${top + ch}h${cw}`;
        if (!at.get(`${i - 1},${j}`)) path += `M${left},${top}v${ch}`;
        if (!at.get(`${i + 1},${j}`)) path += `M${left + cw},${top}v${ch}`;
      }
      if (path) svg.append(s("path", { class: "region under", d: path }), s("path", { class: "region", d: path }));
    }
    axisLabels(svg, { left, top, cw, ch, nx, ny, width, right, height }) {
      const { x, y } = this, widest = Math.max(...x.values.map((value) => value.length)), every = Math.ceil((widest * 7 + 8) / cw), skip = Math.ceil(14 / ch);
      x.values.forEach((value, at) => { if (at % every === 0) svg.append(s("text", { x: left + cw * (at + 0.5), y: top + ch * ny + 16, "text-anchor": "middle" }, value)); });
      y.values.forEach((value, at) => { if (at % skip === 0) svg.append(s("text", { x: left - 6, y: top + ch * (ny - at - 0.5) + 4, "text-anchor": "end" }, value)); });
      svg.append(s("text", { class: "soft", x: left + (width - left - right) / 2, y: height - 8, "text-anchor": "middle" }, x.label));
      const middle = top + (ch * ny) / 2;
      svg.append(s("text", { class: "soft", x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, y.label));
    }
    legend(svg, { at, top, tall, low, high, brightLow }) {
      const steps = 48;
      for (let step = 0; step < steps; step++) {
        const share = (step + 0.5) / steps;
        svg.append(s("rect", { x: at, y: top + tall - ((step + 1) * tall) / steps, width: 14, height: tall / steps + 0.4, fill: colour(brightLow ? 1 - share : share) }));
      }
      for (const part of [0, 0.25, 0.5, 0.75, 1]) {
        svg.append(s("text", { x: at + 19, y: top + tall - tall * part + (part === 1 ? 10 : part === 0 ? 0 : 4) }, bare(this.measure, low + (high - low) * part).replace("+", "")));
      }
      svg.append(s("text", { class: "soft", x: at, y: top + tall + 16 }, (this.measure.better === "zero" ? "±" : "") + (this.measure.unit || "")));
    }
    show(row, clientX, clientY) {
      const { points, measure } = this, failed = !finite(measure.values[row]);
      const line = (name, value) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value));
      const near = points.measures.slice(0, 6).filter((one) => one !== measure);
      this.tip.replaceChildren(
        h("table", {}, h("tbody", {},
          ...points.axes.filter((axis) => axis.values.length > 1 && !axis.missing[axis.at[row]]).map((axis) => line(axis.label, points.setting(row, axis))),
          line(measure.label, h("strong", { class: "value" }, failed ? "failed" : `${withUnit(measure, measure.values[row])} ${interval(measure, row)}`)),
          ...(failed ? [] : near.map((one) => line(one.label, withUnit(one, one.values[row])))),
        )),
        ...(points.failed(row) && points.errors ? [h("p", {}, points.errors[row] || "")] : []),
      );
      this.tip.hidden = false;
      const box = this.tip.getBoundingClientRect();
      this.tip.style.left = `${Math.max(4, clientX + 14 + box.width > innerWidth ? clientX - box.width - 10 : clientX + 14)}px`;
      this.tip.style.top = `${Math.max(4, clientY + 14 + box.height > innerHeight ? clientY - box.height - 10 : clientY + 14)}px`;
    }
    key(event, row) {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.choose(row); return; }
      if (event.key === "Escape") { this.tip.hidden = true; return; }
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = [...this.cells.keys()].find((other) => this.x.at[other] === this.x.at[row] + step[0] && this.y.at[other] === this.y.at[row] + step[1]);
      if (next === undefined) return;
      this.cells.get(row).setAttribute("tabindex", -1);
      this.cells.get(next).setAttribute("tabindex", 0);
      this.cells.get(next).focus();
    }
    choose(row) {
      const { points } = this;
      this.chosen = row;
      this.place(row);
      const summary = points.failed(row) ? `failed: ${(points.errors && points.errors[row]) || ""}` : points.measures.slice(0, 5).map((measure) => `${measure.label} ${withUnit(measure, measure.values[row])}`).join(", ");
      this.picked.replaceChildren(h("strong", {}, "Chosen: "), `${points.title(row)}: ${summary}`);
      this.picked.hidden = false;
      const old = this.picked.parentElement.querySelector(".picked-code");
      if (old) old.remove();
      const code = copyBlock(points.overrides(row), "Settings of the chosen point");
      code.classList.add("picked-code");
      this.picked.after(code);
    }
    dim() { for (const [row, cell] of this.cells) cell.classList.toggle("out", !this.points.passing.has(row)); }
  }

  // ---- table ---------------------------------------------------------------------------------------------------------------------
  class Table {
    constructor(points, root) {
      this.points = points;
      this.shown = PAGE;
      this.columns = [
        ...points.axes.map((axis) => ({ name: axis.label, axis, numeric: axis.numeric, key: (row) => (axis.missing[axis.at[row]] ? null : axis.at[row]), number: (row) => Number(axis.values[axis.at[row]]), text: (row) => points.setting(row, axis) })),
        ...points.measures.map((measure) => ({ name: headed(measure), measure, numeric: true, key: (row) => measure.values[row], number: (row) => (finite(measure.values[row]) ? measure.values[row] / measure.scale : NaN), text: (row) => bare(measure, measure.values[row]) })),
      ];
      const failures = points.status !== null && points.status.some((status) => status !== "ok");
      if (failures) this.columns.push({ name: "status", choices: [...new Set(points.status)], key: (row) => points.status[row], text: (row) => points.status[row] }, { name: "error", free: true, key: (row) => (points.errors && points.errors[row]) || null, text: (row) => (points.errors && points.errors[row]) || "", class: "why" });
      const first = points.measures.findIndex((measure) => measure.column === points.objective);
      this.sorting = { column: this.columns[points.axes.length + Math.max(0, first)] || this.columns[0], down: first >= 0 && points.measures[first].better === "high" };
      this.summary = h("span", { role: "status" });
      this.more = h("button", { type: "button", on: { click: () => { this.shown = Infinity; this.draw(); } } });
      this.reset = h("button", { type: "button", on: { click: () => this.clear() } }, "Clear filters");
      this.body = h("tbody");
      const place = root.querySelector(".table");
      const id = `count-${root.dataset.explorer}`;
      place.append(
        h("p", { class: "count", id }, this.summary, this.more, this.reset),
        h("p", { class: "help" }, "Click a name to sort. Filter with a number: 2, ≤ 2, > 1.5 or 2..5."),
        h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of points" }, h("table", { "aria-describedby": id }, h("caption", {}, `One row a ${points.label}`), h("thead", {}, this.heads(), this.filters()), this.body)),
      );
      place.hidden = false;
      this.draw();
    }
    heads() {
      this.sorters = this.columns.map((column) => h("th", { scope: "col", class: column.numeric ? "num" : null }, h("button", { type: "button", on: { click: () => this.sort(column) } }, column.name)));
      return h("tr", { class: "names" }, ...this.sorters);
    }
    filters() {
      this.inputs = [];
      const cells = this.columns.map((column) => {
        const values = column.axis && column.axis.values.length <= 12 ? column.axis.values : column.choices;
        let input;
        if (values) {
          input = h("select", { "aria-label": `Only ${column.name}`, on: { change: () => this.points.filter(column, input.value === "" ? null : (row) => column.text(row) === values[Number(input.value)]) } }, option("", "all", true), ...values.map((value, at) => option(at, value)));
        } else if (column.numeric) {
          input = h("input", { type: "text", placeholder: column.measure && column.measure.better === "high" ? "≥" : "≤", "aria-label": `Filter ${column.name}: a number, ≤ 2, > 1.5 or 2..5`, on: { input: () => {
            const test = condition(input.value);
            input.setAttribute("aria-invalid", test === undefined);
            if (test !== undefined) this.points.filter(column, test && ((row) => test(column.number(row))));
          } } });
        } else {
          input = h("input", { type: "text", placeholder: "contains", "aria-label": `Filter ${column.name} by text`, on: { input: () => { const text = input.value.toLowerCase(); this.points.filter(column, text ? (row) => column.text(row).toLowerCase().includes(text) : null); } } });
        }
        this.inputs.push(input);
        return h("th", {}, input);
      });
      return h("tr", { class: "filters" }, ...cells);
    }
    clear() {
      for (const input of this.inputs) { input.value = ""; input.removeAttribute("aria-invalid"); }
      this.points.conditions.clear();
      this.points.filter(null, null);
    }
    sort(column) {
      const ascendingFirst = !(column.measure && column.measure.better === "high");
      this.sorting = this.sorting.column === column ? { column, down: !this.sorting.down } : { column, down: !ascendingFirst };
      this.draw();
    }
    draw() {
      const { points } = this, { column, down } = this.sorting;
      const rows = [...points.passing].sort((a, b) => {
        const [one, two] = [column.key(a), column.key(b)];
        if (!finite(one) || !finite(two)) return finite(one) ? -1 : finite(two) ? 1 : a - b;
        const order = typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two));
        return (down ? -order : order) || a - b;
      });
      this.sorters.forEach((head, at) => head.setAttribute("aria-sort", this.columns[at] !== column ? "none" : down ? "descending" : "ascending"));
      const drawn = rows.slice(0, this.shown);
      this.body.replaceChildren(...drawn.map((row) => this.row(row)));
      this.summary.textContent = `${grouped(rows.length, 0)} of ${grouped(points.count, 0)} points` + (drawn.length < rows.length ? `, the first ${drawn.length} shown` : "");
      this.more.textContent = `Show all ${grouped(rows.length, 0)}`;
      this.more.hidden = drawn.length === rows.length;
      this.reset.hidden = points.conditions.size === 0;
    }
    row(row) {
      const { points } = this, best = row === points.best;
      const kind = points.failed(row) ? "failed" : best ? "best" : points.inRegion.has(row) ? "region" : null;
      const title = best ? "the best" : kind === "region" ? "cannot be told apart from the best (paired, 95 %)" : null;
      return h("tr", { class: kind, title, "data-row": row }, ...this.columns.map((column, at) => {
        const text = column.text(row) + (at === 0 && best ? " ★" : "");
        if (at === 0) return h("th", { scope: "row", class: column.numeric ? "num" : null }, text);
        const within = column.measure ? interval(column.measure, row) : "";
        return h("td", { class: column.class || (column.numeric ? "num" : null) }, text, within ? h("span", { class: "interval" }, ` ${within}`) : null);
      }));
    }
  }

  // ---- the page ------------------------------------------------------------------------------------------------------------------
  const root = document.documentElement, theme = document.getElementById("theme");
  const remembered = (() => { try { return localStorage.getItem("oppo-report-theme") || ""; } catch { return ""; } })();
  const setTheme = (name) => { if (name) root.dataset.theme = name; else delete root.dataset.theme; };
  theme.value = remembered;
  setTheme(remembered);
  theme.addEventListener("change", () => {
    setTheme(theme.value);
    try { localStorage.setItem("oppo-report-theme", theme.value); } catch { /* not kept, but in force */ }
  });
  document.getElementById("print").addEventListener("click", () => print());
  document.querySelector(".tools").hidden = false;
  addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((part) => { part.open = true; part.dataset.closed = ""; }));
  addEventListener("afterprint", () => document.querySelectorAll("details[data-closed]").forEach((part) => { part.open = false; delete part.dataset.closed; }));
  for (const button of document.querySelectorAll("button.copy")) { button.hidden = false; button.addEventListener("click", copy); }
  for (const block of document.querySelectorAll('script[type="application/json"]')) {
    const number = block.id.replace("explorer-", "");
    new Explorer(JSON.parse(block.textContent), document.querySelector(`section.heat[data-explorer="${number}"]`), document.querySelector(`section.points[data-explorer="${number}"]`));
  }
})();
