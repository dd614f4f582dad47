"use strict";
// Everything is written as text nodes: a text of a database is never HTML.
(() => {
  const { content, charts } = JSON.parse(document.getElementById("data").textContent);
  const { answers, looks, tasks, fields, cells, runs, bars, timelines } = content;
  const PAGE = 50, MOST_LINES = 12, FIRST_LINES = 6, LISTED = 60, MOST_POINTS = 1000, MOST_NUMBERS = 300;
  // The places are the ones of figures/_style.py, so that a method has one colour in pictures and pages.
  const LIGHT = ["#D55E00", "#000000", "#0072B2", "#2F8FC4", "#009E73", "#B87800", "#CC79A7", "#7F7F7F", "#882255", "#2A8C7E", "#7A7A1F", "#332288", "#AA4499"];
  const DARK = ["#FF8A3D", "#FFFFFF", "#5AB4F0", "#9AD4F5", "#2FC79A", "#E6B23A", "#E79BC4", "#A8A8A8", "#D77FA8", "#7FD6C8", "#CFCF6A", "#A79BF0", "#DD88CC"];
  const HUES = ["method", "aggregator", "attack", "pre_aggregators", "switching"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { task: 0, filter: {}, words: "", x: null, hue: null, facet: -1, answer: null, lines: null, listed: "", who: null, sort: 0, falling: false, shown: PAGE };
  const drawn = {};

  const get = (id) => document.getElementById(id);
  const value = (cell, field) => fields[field].values[cell.at[field]];
  const place = (name) => fields.findIndex((field) => field.name === name);
  const digits = (number) => (number === null ? "-" : Math.abs(number) >= 0.001 && Math.abs(number) < 1e5 ? String(+number.toPrecision(4)) : number.toExponential(2));
  const unique = (list) => [...new Set(list)];

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, given] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), given);
      else if (given !== null && given !== false) node.setAttribute(name, given === true ? "" : given);
    }
    node.append(...children);
    return node;
  }

  function select(label, options, chosen, change) {
    const list = make("select", { onchange: () => change(list.value) });
    for (const [key, text] of options) list.append(make("option", { value: key, selected: String(key) === String(chosen) }, text));
    return make("label", {}, label, list);
  }

  // --- what is shown

  const task = () => tasks[state.task];
  const varied = () => task().fields.map(place);
  const sweeps = () => unique(cells.filter((cell) => cell.task === state.task).map((cell) => cell.at[place("sweep")]));
  const filters = () => (sweeps().length > 1 ? [place("sweep"), ...varied()] : varied());
  const label = (cell) => varied().map((field) => value(cell, field)).join(", ") || task().name;
  const rowText = (run) => [run[0], run[1], label(cells[run[2]]), value(cells[run[2]], place("sweep")), `seed ${run[3]}`, run[4], run[9]].join(" ").toLowerCase();

  function matching() {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    return runs.filter((run) => {
      const cell = cells[run[2]];
      if (cell.task !== state.task) return false;
      if (Object.entries(state.filter).some(([field, wanted]) => cell.at[field] !== wanted)) return false;
      return !words.length || ((text) => words.every((word) => text.includes(word)))(rowText(run));
    });
  }

  // Runs of several sweeps in one chart are seldom comparable: the largest sweep comes first.
  function start() {
    const field = place("sweep"), counts = new Map();
    for (const cell of cells.filter((cell) => cell.task === state.task)) counts.set(cell.at[field], (counts.get(cell.at[field]) ?? 0) + cell.n);
    state.filter = counts.size > 1 ? { [field]: [...counts].sort((a, b) => b[1] - a[1])[0][0] } : {};
    pick();
  }

  function pick() {
    const names = varied(), own = cells.filter((cell) => cell.task === state.task && Object.entries(state.filter).every(([field, wanted]) => cell.at[field] === wanted));
    const sizes = (field) => unique(own.map((cell) => cell.at[field])).length;
    const several = (field) => sizes(field) > 1;
    const ranked = [...HUES.map(place).filter((field) => names.includes(field)), ...names].filter(several);
    state.hue = ranked.find((field) => sizes(field) <= 12) ?? -1;
    state.x = [place("switching"), place("attack"), ...ranked].find((field) => names.includes(field) && field !== state.hue && several(field)) ?? (state.hue < 0 ? names[0] ?? place("sweep") : state.hue);
    state.shown = PAGE;
    state.facet = -1;
    state.lines = null;
  }

  // --- the answer

  function answersNow() {
    const sweep = state.filter[place("sweep")], name = sweep === undefined ? null : fields[place("sweep")].values[sweep];
    const own = answers.filter((one) => one.task === task().name);
    const exact = own.filter((one) => one.sweep === name);
    return exact.length ? exact : own.filter((one) => one.sweep === (own[0]?.sweep ?? ""));
  }

  function drawAnswer() {
    const own = answersNow();
    get("answer").hidden = !own.length;
    if (!own.length) return;
    if (!own.includes(state.answer)) state.answer = own[0];
    const one = state.answer;
    get("sentence").textContent = one.sentence;
    get("answer-controls").replaceChildren(...(own.length > 1 ? [select("compared", own.map((other, k) => [k, other.label]), own.indexOf(one), (k) => { state.answer = own[+k]; drawAnswer(); })] : []));
    get("answer-notes").replaceChildren(...[...(own.length && one.sweep ? [`sweep ${one.sweep}`] : []), "the best of a column has a frame", ...one.notes].map((line) => make("li", {}, line)));
    const numbers = one.panels.flatMap((panel) => panel.rows.flatMap((row) => row[1].filter(Boolean).map((cell) => +cell[0])));
    const low = Math.min(...numbers), high = Math.max(...numbers);
    get("matrices").replaceChildren(...one.panels.map((panel) => matrix(panel, low, high)));
  }

  // Shades of one colour: the ink stays readable on all of them in both schemes.
  function shade(text, low, high) {
    const part = high > low ? (+text - low) / (high - low) : 1;
    return `background: color-mix(in srgb, var(--accent) ${Math.round(45 * part)}%, transparent)`;
  }

  function matrix(panel, low, high) {
    const cell = (given) => {
      if (!given) return make("td", {}, "-");
      const [mean, spread, best, tied, n, diverged] = given;
      const title = `${n} seeds${diverged ? `, ${diverged} diverged` : ""}`;
      return make("td", { class: best && "best", style: shade(mean, low, high), title }, mean + (tied ? " \u2248" : ""), make("small", {}, spread));
    };
    const rows = panel.rows.map(([label, own, [worst, where], rank]) => make("tr", {}, make("th", { scope: "row" }, label), ...own.map(cell), make("td", { class: "side", style: shade(worst, low, high) }, worst, make("small", {}, where)), make("td", {}, rank)));
    const head = make("tr", {}, make("td", {}), ...[...panel.columns, "worst", "mean rank"].map((name) => make("th", { scope: "col" }, name)));
    return make("div", { class: "scroll matrix" }, make("table", {}, make("caption", {}, panel.title), make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  // --- charts

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const [ink, faint, edge, accent] = ["--ink", "--faint", "--edge", "--accent"].map((name) => style.getPropertyValue(name).trim());
    const columns = Math.max(1, Math.floor(document.body.clientWidth / 250));
    return {
      background: "transparent", font: "system-ui, sans-serif", range: { category: dark.matches ? DARK : LIGHT },
      axis: { labelColor: ink, titleColor: ink, gridColor: edge, gridOpacity: 0.5, domainColor: faint, tickColor: faint, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" },
      legend: { symbolOpacity: 1, labelColor: ink, titleColor: ink, orient: "bottom", columns, labelFontSize: 12 },
      view: { stroke: edge }, bar: { color: accent }, rect: { color: accent }, title: { color: ink },
    };
  }

  const spread = (list, most) => (list.length <= most ? list : Array.from({ length: most }, (_, k) => list[Math.floor((k * list.length) / most)]));
  const upper = (text) => text[0].toUpperCase() + text.slice(1);

  async function draw(name, rows, height, caption, columns, adapt = () => {}) {
    const figure = get(name), turn = (drawn[name]?.turn ?? 0) + 1;
    drawn[name]?.result?.finalize();
    drawn[name] = { turn };
    figure.hidden = !rows.length;
    if (!figure.closest("details").open) return;  // drawn when it is opened: a closed part has no width
    figure.dataset.rows = rows.length;
    figure.querySelector("details.numbers")?.remove();
    if (!rows.length) return;
    const numbers = make("details", { class: "numbers", ontoggle: () => fill(numbers, rows, columns) }, make("summary", {}, "The numbers as a table"));
    caption = upper(caption);
    figure.querySelector("figcaption").replaceChildren(caption);
    figure.append(numbers);
    const spec = structuredClone(charts[name]);
    Object.assign(spec, { width: "container", height, autosize: { type: "fit-x", contains: "padding" }, description: caption, datasets: { [name]: rows } });
    if (name === "curves" && rows.every((row) => row.low === null)) spec.layer.shift();
    for (const unit of spec.layer ?? [spec]) adapt(unit.encoding, unit);
    if (rows[0].facet !== undefined) facet(spec, figure.clientWidth);
    const options = { mode: "vega-lite", renderer: "svg", ast: true, config: theme(), downloadFileName: name, tooltip: { theme: dark.matches ? "dark" : "light" } };
    options.actions = { export: true, source: false, compiled: false, editor: false };
    const result = await vegaEmbed(figure.querySelector(".chart"), spec, options);
    if (drawn[name].turn === turn) drawn[name].result = result;
    else result.finalize();
  }

  // Panels one below the other; Vega-Lite cannot fit these to their container.
  function facet(spec, width) {
    const { layer } = spec;
    delete spec.layer;
    for (const name of ["width", "height", "autosize"]) delete spec[name];
    spec.facet = { row: { field: "facet", type: "nominal", sort: null, title: null, header: { labelAngle: 0, labelAlign: "left", labelOrient: "top", labelFontSize: 12, labelColor: getComputedStyle(document.body).color } } };
    spec.spec = { width: Math.max(120, width - 90), height: 170, layer };
  }

  function fill(details, rows, columns) {
    if (!details.open || details.querySelector("table")) return;
    const head = make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, column)));
    const cell = (given) => make("td", { class: typeof given === "number" && "number" }, typeof given === "number" ? digits(given) : String(given ?? "-"));
    const body = rows.slice(0, MOST_NUMBERS).map((row) => make("tr", {}, ...columns.map((column) => cell(row[column]))));
    const caption = make("caption", {}, rows.length > MOST_NUMBERS ? `The first ${MOST_NUMBERS} of ${rows.length} rows` : `${rows.length} rows`);
    details.append(make("div", { class: "scroll" }, make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...body))));
  }

  const series = (cell) => (state.hue < 0 ? label(cell) : value(cell, state.hue));

  function scored(names, rows) {
    const gap = task().metric === "gap", ends = rows.flatMap((row) => [row.mean, row.low, row.high]).filter((one) => one !== null);
    const low = Math.min(...ends), high = Math.max(...ends), room = 0.05 * (high - low || 0.1);
    const domain = gap ? null : [Math.max(0, low - room), Math.min(1, high + room)];
    const palette = dark.matches ? DARK : LIGHT, taken = new Set(names.map((name) => looks[name]).filter((at) => at !== undefined));
    const free = palette.filter((_, at) => !taken.has(at));
    let next = 0;
    const range = names.map((name) => palette[looks[name]] ?? free[next++ % free.length]);
    return (encoding) => {
      encoding.color.scale = names.length > palette.length ? { domain: names, scheme: "tableau20" } : { domain: names, range };
      encoding.color.legend = { ...encoding.color.legend, title: state.hue < 0 ? null : fields[state.hue].label };
      encoding.y.scale = gap ? { type: "log", clamp: true } : { domain };
      encoding.y.title = task().label;
      if (gap) encoding.y.axis = { format: "~e" };
    };
  }

  function drawFinal(shown) {
    const known = shown.filter((cell) => cell.mean !== null && (task().metric !== "gap" || cell.mean > 0));
    const some = spread(known, MOST_POINTS), at = state.x;
    const names = unique(some.sort((a, b) => a.at[state.hue] - b.at[state.hue]).map(series));
    const ticks = unique([...some].sort((a, b) => a.at[at] - b.at[at]).map((cell) => value(cell, at)));
    const [floor, ceiling] = task().metric === "gap" ? [1e-12, Infinity] : [0, 1];
    const rows = some.map((cell) => ({
      x: value(cell, at), series: series(cell), label: label(cell), mean: cell.mean, std: cell.std, n: cell.n, diverged: cell.diverged,
      low: Math.max(floor, cell.mean - (cell.std ?? 0)), high: Math.min(ceiling, cell.mean + (cell.std ?? 0)),
      ...(state.facet < 0 ? {} : { facet: `${fields[state.facet].label}: ${value(cell, state.facet)}` }),
    }));
    const most = known.length > some.length ? ` ${some.length} of ${known.length} cells, evenly chosen; the filter shows others.` : "";
    const caption = `Final ${task().label} by ${fields[at].label}: a point per cell, the mean over seeds with one standard deviation. A click on the legend hides a series.${most}`;
    const adapt = scored(names, rows);
    return draw("final", rows, 300, caption, ["label", "mean", "std", "n", "diverged"], (encoding) => {
      adapt(encoding);
      encoding.x.sort = ticks;
      encoding.x.title = fields[at].label;
      encoding.x.axis = { ...encoding.x.axis, labelAngle: ticks.length * Math.max(...ticks.map((tick) => tick.length)) < 60 ? 0 : -90 };
      if (names.length > 8 || at === state.hue) delete encoding.xOffset;
      else encoding.xOffset.sort = names;
    });
  }

  // The best cell of each colour first; then the reader chooses.
  function chosenLines(known) {
    const score = (cell) => (cell.mean === null ? -Infinity : task().metric === "gap" ? -cell.mean : cell.mean);
    if (state.lines === null || ![...state.lines].some((cell) => known.includes(cell))) {
      const best = new Map();
      for (const cell of known) if (!best.has(series(cell)) || score(cell) > score(best.get(series(cell)))) best.set(series(cell), cell);
      const few = known.length <= FIRST_LINES ? known : [...best.values()].sort((a, b) => score(b) - score(a)).slice(0, FIRST_LINES);
      state.lines = new Set(few);
    }
    listLines(known);
    return known.filter((cell) => state.lines.has(cell));
  }

  function listLines(known) {
    const words = state.listed.toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = known.filter((cell) => state.lines.has(cell) || words.every((word) => label(cell).toLowerCase().includes(word)));
    const boxes = fitting.slice(0, LISTED).map((cell) => {
      const box = make("input", { type: "checkbox", onchange: () => { if (box.checked) state.lines.add(cell); else state.lines.delete(cell); drawCurves(known); } });
      box.checked = state.lines.has(cell);
      box.disabled = !box.checked && state.lines.size >= MOST_LINES;
      return make("label", {}, box, label(cell));
    });
    const more = fitting.length > LISTED ? [make("span", { class: "note" }, `and ${fitting.length - LISTED} more; the words above narrow the list`)] : [];
    get("lines").hidden = known.length <= 1;
    get("lines").replaceChildren(make("legend", { class: "note" }, `Lines, at most ${MOST_LINES}`), ...boxes, ...more);
    if (get("curve-controls").childElementCount) return;
    const input = make("input", { type: "search", placeholder: "words", oninput: () => { state.listed = input.value; listLines(state.known); } });
    get("curve-controls").append(make("label", {}, "find lines", input));
  }

  function drawCurves(shown) {
    const known = shown.filter((cell) => cell.curve.length && cell.curve[1].some((mean) => mean !== null));
    state.known = known;
    const gap = task().metric === "gap", some = chosenLines(known);
    const names = unique([...some].sort((a, b) => a.at[state.hue] - b.at[state.hue]).map(series));
    const rows = some.flatMap((cell, number) => cell.curve[0].map((budget, k) => {
      const mean = cell.curve[1][k], std = cell.curve[2][k], band = some.length <= 8 && mean !== null && std !== null && !gap;
      return { budget, mean, std, n: cell.n, cell: number, series: series(cell), label: label(cell), low: band ? Math.max(0, mean - std) : null, high: band ? Math.min(1, mean + std) : null };
    })).filter((row) => row.mean !== null && (!gap || row.mean > 0));
    const most = known.length > some.length ? ` ${some.length} of ${known.length} lines, as chosen above.` : "";
    const band = some.length <= 8 && !gap ? " Bands are one standard deviation." : "";
    const caption = `${task().label} along the training budget: a line per cell, the mean over seeds.${band} A click on the legend hides a series.${most}`;
    return draw("curves", rows, 320, caption, ["label", "budget", "mean", "std", "n"], scored(names, rows));
  }

  function drawMatrix(shown) {
    const [rule, chain, attack] = ["aggregator", "pre_aggregators", "attack"].map(place);
    const highest = task().metric === "gap", worst = new Map();
    const known = rule < 0 || attack < 0 ? [] : shown.filter((cell) => cell.mean !== null);
    const name = (cell) => (chain >= 0 && value(cell, chain) !== "none" ? `${value(cell, chain)}+` : "") + value(cell, rule);
    for (const cell of known) {
      for (const column of [value(cell, attack), "worst"]) {
        const key = JSON.stringify([name(cell), column]), old = worst.get(key);
        const worse = !old || (highest ? cell.mean > old.cell.mean : cell.mean < old.cell.mean);
        worst.set(key, { cell: worse ? cell : old.cell, of: (old?.of ?? 0) + 1 });
      }
    }
    const least = (row) => worst.get(JSON.stringify([row, "worst"])).cell.mean;
    const names = unique(known.map(name)).sort((a, b) => (highest ? least(a) - least(b) : least(b) - least(a)));
    const columns = unique([...known].sort((a, b) => a.at[attack] - b.at[attack]).map((cell) => value(cell, attack)));
    const enough = names.length > 1 && columns.length > 1;
    get("worst").hidden = !enough;
    const largest = Math.max(...known.map((cell) => cell.mean)), smallest = Math.min(...known.map((cell) => cell.mean));
    const [low, high] = [smallest, largest];
    const rows = [...worst].map(([key, { cell, of }]) => {
      const [aggregator, column] = JSON.parse(key);
      return { aggregator, attack: column, value: cell.mean, worst: highest ? digits(cell.mean) : cell.mean.toFixed(2).replace(/^0/, ""), of, label: label(cell), dark: (cell.mean - low) / (high - low || 1) < 0.55 };
    });
    const caption = `Worst ${task().label} of each aggregator under each attack, over everything else that the filter leaves; best rule first. The column "worst" is over all attacks.`;
    return draw("matrix", enough ? rows : [], 20 * names.length, caption, ["aggregator", "attack", "worst", "of", "label"], (encoding, unit) => {
      encoding.x.sort = [...columns, "worst"];
      encoding.y.sort = names;
      if (unit.mark.type === "rect") encoding.color.scale = { scheme: "cividis", domain: [low, high] };
      else if (get("matrix").clientWidth < 34 * columns.length) unit.mark.opacity = 0;
    });
  }

  function drawWho(shown) {
    const at = place("switching"), order = (name) => (at < 0 ? 0 : fields[at].values.indexOf(name)), own = (row) => row.task === task().name;
    const left = at < 0 ? null : new Set(shown.map((cell) => value(cell, at)));
    const names = unique(bars.filter((row) => row[0] === task().name && (!left || left.has(row[1]))).map((row) => row[1])).sort((a, b) => order(a) - order(b));
    if (!names.includes(state.who)) state.who = names[0] ?? null;
    get("who-controls").replaceChildren(...(names.length > 1 ? [select("switching strategy", names.map((one) => [one, one]), state.who, (one) => { state.who = one; drawWho(shown); })] : []));
    const shares = bars.filter((row) => row[0] === task().name && row[1] === state.who).map(([, , fraction, share]) => ({ fraction, share }));
    const line = timelines.find((one) => own(one) && one.switching === state.who);
    const spans = (line?.spans ?? []).map(([worker, from, to]) => ({ worker, start: from, end: to }));
    const told = line ? `Byzantine workers over the first ${line.ticks} ticks (unit: ${line.unit}) of run ${line.run}, seed ${line.seed}, with ${state.who}.` : "";
    return Promise.all([
      draw("bars", shares, 180, `Share of all rounds with each fraction of Byzantine workers, with ${state.who}.`, ["fraction", "share"]),
      draw("timeline", spans, 11 * (line?.workers ?? 1), told, ["worker", "start", "end"], (encoding) => {
        encoding.x.scale = { domain: [0, line.ticks], nice: false };
        encoding.x.title = line.unit;
        encoding.y.scale = { domain: Array.from({ length: line.workers }, (_, worker) => worker + 1) };
      }),
    ]);
  }

  // --- the table of runs

  function columns() {
    const ofCell = varied().map((field) => ({ name: fields[field].label, meaning: fields[field].meaning, key: (run) => cells[run[2]].at[field], text: (run) => value(cells[run[2]], field) }));
    const number = (name, at, meaning) => ({ name, meaning, numeric: true, key: (run) => run[at] ?? -Infinity, text: (run) => (typeof run[at] === "number" && !Number.isInteger(run[at]) ? digits(run[at]) : String(run[at] ?? "-")) });
    return [
      { ...number("run", 0, "number of the run"), text: (run) => String(run[0]) }, ...ofCell, number("seed", 3, "seed"),
      { name: "status", meaning: "finished or diverged", key: (run) => run[4], text: (run) => run[4] },
      { ...number(task().metric === "gap" ? "gap" : "accuracy", 5, `final ${task().label}`), text: (run) => digits(run[5]) },
      number("rounds", 6, "rounds"), number("time, s", 7, "duration in seconds"),
      ...(runs.some((run) => run[9]) ? [{ name: "tags and note", meaning: "words of the user", key: (run) => run[9], text: (run) => run[9] }] : []),
    ];
  }

  function drawTable(matched) {
    const all = columns(), by = all[state.sort] ?? all[0], sign = state.falling ? -1 : 1;
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const sorted = [...matched].sort((a, b) => sign * compare(by.key(a), by.key(b)) || a[0] - b[0]);
    const head = all.map((column, k) => {
      const sort = column === by ? (state.falling ? "descending" : "ascending") : "none";
      const press = () => { state.falling = state.sort === k && !state.falling; state.sort = k; drawTable(matching()); get("table").querySelectorAll("thead button")[k].focus(); };
      return make("th", { scope: "col", "aria-sort": sort, class: column.numeric && "number", title: column.meaning }, make("button", { type: "button", onclick: press }, column.name));
    });
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
    const line = open.closest("tr"), old = line.nextElementSibling;
    const opened = open.getAttribute("aria-expanded") === "true";
    open.setAttribute("aria-expanded", String(!opened));
    if (opened) { old.remove(); return; }
    const command = `${cells[run[2]].command} --seed ${run[3]}`;
    const copy = make("button", { type: "button", onclick: async () => { try { await navigator.clipboard.writeText(command); copy.textContent = "copied"; } catch { getSelection().selectAllChildren(code); } } }, "copy");
    const code = make("code", {}, command);
    line.after(make("tr", { class: "more" }, make("td", { colspan: width }, code, copy, ` Key ${run[1]}, started ${run[8]} UTC; dynabro show runs/${run[1]} has everything about it.`)));
  }

  // --- controls

  function controls() {
    const own = cells.filter((cell) => cell.task === state.task), options = (field) => {
      const known = unique(own.map((cell) => cell.at[field])).sort((a, b) => a - b);
      return [["", "all"], ...known.map((at) => [at, fields[field].values[at] || "(none)"])];
    };
    const parts = tasks.length > 1 ? [select("task", tasks.map((one, k) => [k, one.name]), state.task, (k) => { state.task = +k; start(); controls(); update(); })] : [];
    for (const field of filters()) {
      parts.push(select(fields[field].label, options(field), state.filter[field] ?? "", (at) => {
        if (at === "") delete state.filter[field];
        else state.filter[field] = +at;
        if (field === place("sweep")) { pick(); controls(); }
        state.shown = PAGE;
        update();
      }));
    }
    let pause;
    const words = make("input", { type: "search", value: state.words, placeholder: "words", oninput: () => { clearTimeout(pause); pause = setTimeout(() => { state.words = words.value; state.shown = PAGE; update(); }, 200); } });
    parts.push(make("label", {}, "search", words), make("button", { type: "button", onclick: () => { state.words = ""; state.filter = {}; controls(); update(); } }, "Show all"));
    get("filters").replaceChildren(...parts);
    const names = [...varied(), ...(sweeps().length > 1 || !varied().length ? [place("sweep")] : [])];
    const choices = names.map((field) => [field, fields[field].label]);
    get("final-controls").replaceChildren(
      select("along the axis", choices, state.x, (field) => { state.x = +field; update(); }),
      select("colour", [...choices, [-1, "each cell"]], state.hue, (field) => { state.hue = +field; state.lines = null; update(); }),
      select("panels", [[-1, "one"], ...choices], state.facet, (field) => { state.facet = +field; update(); }),
    );
  }

  async function update() {
    const matched = matching(), all = runs.filter((run) => cells[run[2]].task === state.task).length;
    const shown = unique(matched.map((run) => run[2])).map((cell) => cells[cell]);
    get("count").textContent = `${matched.length} of ${all} runs on ${task().name}, in ${shown.length} cells`;
    drawTable(matched);
    drawAnswer();
    for (const id of ["scores", "along", "who"]) get(id).hidden = !shown.length;
    document.body.dataset.drawn = "";
    await Promise.all([drawFinal(shown), drawCurves(shown), drawMatrix(shown), drawWho(shown)]);
    document.body.dataset.drawn = "yes";
  }

  get("filters").addEventListener("submit", (event) => event.preventDefault());
  get("more").addEventListener("click", () => { state.shown += 4 * PAGE; drawTable(matching()); });
  get("open").addEventListener("click", () => { for (const part of document.querySelectorAll("details.fold")) part.open = true; });
  for (const part of document.querySelectorAll("details.fold")) part.addEventListener("toggle", () => part.open && part.querySelector("figure") && update());
  dark.addEventListener("change", update);
  start();
  controls();
  update();
})();
