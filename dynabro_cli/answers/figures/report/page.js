"use strict";
// Everything is written as text nodes: a text of a database is never HTML.
(() => {
  const { content, charts } = JSON.parse(document.getElementById("data").textContent);
  const { tasks, fields, cells, runs, bars, timelines } = content;
  const PAGE = 50, MANY = 3000;
  // The places are the ones of figures/_style.py, so that a method has one colour in pictures and pages.
  const LIGHT = ["#D55E00", "#000000", "#0072B2", "#2F8FC4", "#009E73", "#B87800", "#CC79A7", "#7F7F7F", "#882255", "#2A8C7E", "#7A7A1F", "#332288", "#AA4499"];
  const DARK = ["#FF8A3D", "#FFFFFF", "#5AB4F0", "#9AD4F5", "#2FC79A", "#E6B23A", "#E79BC4", "#A8A8A8", "#D77FA8", "#7FD6C8", "#CFCF6A", "#A79BF0", "#DD88CC"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { task: 0, chosen: {}, words: "", sort: 0, falling: false, shown: PAGE };
  const views = {};

  const get = (id) => document.getElementById(id);
  const place = (name) => fields.findIndex((field) => field.name === name);
  const value = (cell, name) => fields[place(name)].values[cell.at[place(name)]];
  const digits = (number) => (number === null ? "-" : Math.abs(number) >= 0.001 && Math.abs(number) < 1e5 ? String(+number.toPrecision(4)) : number.toExponential(2));
  const task = () => tasks[state.task];
  const label = (cell) => tasks[cell.task].fields.map((name) => value(cell, name)).join(", ") || tasks[cell.task].name;

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, given] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), given);
      else if (given !== null && given !== false) node.setAttribute(name, given === true ? "" : given);
    }
    node.append(...children);
    return node;
  }

  // --- charts: Vega-Lite filters, sorts and colours; here are only its data, sizes and colours

  const matches = (cell) => cell.task === state.task && Object.entries(state.chosen).every(([key, wanted]) => !key.startsWith("only_") || wanted === null || value(cell, key.slice(5)) === wanted);

  function scores() {
    const gap = task().metric === "gap", [floor, ceiling] = gap ? [1e-12, Infinity] : [0, 1];
    const ends = (mean, std) => ({ mean, std, low: std === null ? null : Math.max(floor, mean - std), high: std === null ? null : Math.min(ceiling, mean + std) });
    const own = cells.filter(matches).map((cell, number) => ({
      number, cell, about: { ...Object.fromEntries(fields.map(({ name }) => [name, value(cell, name)])), label: label(cell), n: cell.n, diverged: cell.diverged },
    }));
    const drawn = (mean) => mean !== null && (!gap || mean > 0);
    return {
      cells: own.filter(({ cell }) => drawn(cell.mean)).map(({ cell, about }) => ({ ...about, ...ends(cell.mean, cell.std) })),
      curves: own.filter(({ cell }) => cell.curve.length).flatMap(({ cell, about, number }) => cell.curve[0].map((budget, k) => (
        { ...about, number, loss: cell.mean === null ? Infinity : gap ? cell.mean : -cell.mean, budget, ...ends(cell.curve[1][k], cell.curve[2][k]) }))).filter((row) => drawn(row.mean)),
    };
  }

  function identities() {
    const own = (row) => row[0] === task().name;
    const lines = timelines.filter((line) => line.task === task().name);
    return {
      bars: bars.filter(own).map(([, switching, fraction, share]) => ({ switching, fraction, share })),
      // an empty span of each worker: those that are never Byzantine have a row, too
      spans: lines.flatMap(({ switching, run, seed, unit, workers, spans }) => [...Array.from({ length: workers }, (_, k) => [k + 1, 0, 0]), ...spans].map(
        ([worker, start, end]) => ({ switching: `${switching} (run ${run}, seed ${seed}, unit: ${unit})`, worker, start, end }))),
    };
  }

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const [ink, faint, edge, accent] = ["--ink", "--faint", "--edge", "--accent"].map((name) => style.getPropertyValue(name).trim());
    return {
      background: "transparent", font: "system-ui, sans-serif",
      axis: { labelColor: ink, titleColor: ink, gridColor: edge, gridOpacity: 0.5, domainColor: faint, tickColor: faint, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" },
      legend: { symbolOpacity: 1, labelColor: ink, titleColor: ink, orient: "top", columns: Math.max(1, Math.floor(document.body.clientWidth / 260)), labelFontSize: 12, symbolLimit: 40, labelLimit: 240 },
      header: { labelColor: ink, labelFontSize: 12 }, view: { stroke: edge }, bar: { color: accent }, rect: { color: accent }, title: { color: ink, fontSize: 13, fontWeight: "normal", anchor: "start" },
    };
  }

  async function draw(name, datasets) {
    const figure = get(name), turn = (views[name]?.turn ?? 0) + 1;
    views[name]?.view?.finalize();
    views[name] = { turn };
    if (!figure.closest("details").open) return;  // drawn when it is opened: a closed part has no width
    const spec = Object.assign(structuredClone(charts[state.task][name]), { datasets });
    spec.columns = name === "scores" && figure.clientWidth > 900 ? 2 : 1;
    for (const view of spec.concat) view.width = Math.max(120, figure.clientWidth / spec.columns - 90);
    const given = Object.fromEntries((spec.params ?? []).map((one) => [one.name, one]));
    for (const [key, chosen] of Object.entries(state.chosen)) if (given[key]) given[key].value = chosen;
    if (given.colour) {  // a scale of Vega-Lite has fixed colours: another choice draws the charts again
      const colour = given.colour.value, present = new Set(datasets.cells.map((row) => row[colour]));
      const places = given.colours.value[colour].map((at, k) => [given.orders.value[colour][k], at]).filter(([text]) => present.has(text));
      const along = new Set(datasets.cells.map((row) => row[given.along.value])), first = spec.concat[0];
      first.encoding.x.axis.labelAngle = first.width / along.size < 120 ? -40 : 0;
      const range = places.map(([, at]) => (dark.matches ? DARK : LIGHT)[at]);
      for (const chart of spec.concat) {
        chart.encoding.color.scale = { domain: places.map(([text]) => text), range };
        if (datasets[chart.data.name].every((row) => row.low === null)) chart.layer.shift();  // Vega warns of empty deviations
      }
    }
    const renderer = Object.values(datasets).some((rows) => rows.length > MANY) ? "canvas" : "svg";
    const options = { mode: "vega-lite", renderer, ast: true, config: theme(), downloadFileName: name, tooltip: { theme: dark.matches ? "dark" : "light" }, bind: name === "scores" ? get("filters") : undefined };
    const actions = { export: true, source: false, compiled: false, editor: false };
    const held = document.activeElement.name;
    const { view, finalize } = await vegaEmbed(figure.querySelector(".chart"), spec, { ...options, actions });
    if (views[name].turn !== turn) return finalize();
    views[name].view = { finalize };
    if (given[held]) get("filters").querySelector(`[name="${held}"]`).focus({ preventScroll: true });
    for (const key of Object.keys(given)) {
      if (given[key].bind) view.addSignalListener(key, (_, chosen) => { state.chosen[key] = chosen; if (key === "colour" || key.startsWith("only_")) update(); });
    }
  }

  // --- the table of runs

  function matching() {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    return runs.filter((run) => {
      const cell = cells[run[2]];
      if (!matches(cell)) return false;
      const text = [run[0], run[1], label(cell), value(cell, "sweep"), `seed ${run[3]}`, run[4], run[9]].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  function columns() {
    const ofCell = task().fields.map((field) => ({ ...fields[place(field)], key: (run) => cells[run[2]].at[place(field)], text: (run) => value(cells[run[2]], field) }));
    const number = (label, at, meaning, text = String) => ({ label, meaning, numeric: true, key: (run) => run[at] ?? -Infinity, text: (run) => (run[at] === null ? "-" : text(run[at])) });
    return [
      number("run", 0, "number of the run"), ...ofCell, number("seed", 3, "seed"), { label: "status", meaning: "finished or diverged", key: (run) => run[4], text: (run) => run[4] },
      number(task().metric === "gap" ? "gap" : "accuracy", 5, `final ${task().label}`, digits), number("rounds", 6, "rounds"), number("time, s", 7, "duration in seconds", digits),
      ...(runs.some((run) => run[9]) ? [{ label: "tags and note", meaning: "words of the user", key: (run) => run[9], text: (run) => run[9] }] : []),
    ];
  }

  function drawTable() {
    const all = columns(), by = all[state.sort] ?? all[0], sign = state.falling ? -1 : 1, matched = matching();
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const sorted = [...matched].sort((a, b) => sign * compare(by.key(a), by.key(b)) || a[0] - b[0]);
    const head = all.map((column, k) => {
      const sort = column === by ? (state.falling ? "descending" : "ascending") : "none";
      const press = () => { state.falling = state.sort === k && !state.falling; state.sort = k; drawTable(); get("table").querySelectorAll("thead button")[k].focus(); };
      return make("th", { scope: "col", "aria-sort": sort, class: column.numeric && "number", title: column.meaning }, make("button", { type: "button", onclick: press }, column.label));
    });
    const count = runs.filter((run) => cells[run[2]].task === state.task).length;
    get("count").textContent = `${matched.length} of ${count} runs on ${task().name}, in ${new Set(matched.map((run) => run[2])).size} cells`;
    get("table").tHead.replaceChildren(make("tr", {}, ...head));
    get("table").tBodies[0].replaceChildren(...sorted.slice(0, state.shown).map((run) => row(run, all)));
    get("more").hidden = sorted.length <= state.shown;
    get("more").textContent = `Show more runs (${sorted.length - state.shown} left)`;
  }

  function row(run, all) {
    const open = make("button", { type: "button", "aria-expanded": "false", "aria-label": `Run ${run[0]}: how to repeat it`, onclick: () => toggle(open, run, all.length) }, String(run[0]));
    const rest = all.slice(1).map((column) => make("td", { class: column.numeric && "number" }, column.text(run)));
    return make("tr", {}, make("th", { scope: "row" }, open), ...rest);
  }

  function toggle(open, run, width) {
    const line = open.closest("tr"), opened = open.getAttribute("aria-expanded") === "true";
    open.setAttribute("aria-expanded", String(!opened));
    if (opened) return line.nextElementSibling.remove();
    const command = make("code", {}, `${cells[run[2]].command} --seed ${run[3]}`);
    line.after(make("tr", { class: "more" }, make("td", { colspan: width }, command, ` Key ${run[1]}, started ${run[8]} UTC; dynabro show runs/${run[1]} has everything about it.`)));
  }

  async function update() {
    drawTable();
    document.body.dataset.drawn = "";
    await Promise.all([draw("scores", scores()), draw("who", identities())]);
    document.body.dataset.drawn = "yes";
  }

  get("task").append(...tasks.map((one, k) => make("option", { value: k }, one.name)));
  function start(number) {
    const bound = charts[number].scores.params.filter((given) => given.bind);
    Object.assign(state, { task: number, shown: PAGE, sort: 0, chosen: Object.fromEntries(bound.map((given) => [given.name, given.value])) });
    update();
  }

  get("task").addEventListener("change", (event) => start(+event.target.value));
  get("words").addEventListener("input", (event) => { state.words = event.target.value; state.shown = PAGE; drawTable(); });
  get("more").addEventListener("click", () => { state.shown += 4 * PAGE; drawTable(); });
  get("open").addEventListener("click", () => { for (const part of document.querySelectorAll("details.fold, #controls details")) part.open = true; });
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", async () => {
    const part = document.querySelector(link.hash);
    part.open = true;
    if (part.querySelector("figure")) await update();  // the part grows when its charts are drawn
    part.scrollIntoView();
  });
  for (const part of document.querySelectorAll("details.fold")) part.addEventListener("toggle", () => part.open && part.querySelector("figure") && update());
  dark.addEventListener("change", update);
  start(0);
})();
