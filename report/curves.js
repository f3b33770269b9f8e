// The score against open heads: every curve with its band, every state of pruning as a point with its interval.

// Colours, dashes and markers are those of report/palette.py; page.py writes a look for each curve.
const PLAIN = { colour: "var(--soft)", dash: "none", marker: "o" };
const lookOf = (curve) => (data.looks ?? {})[curve.method] ?? PLAIN;
const colours = (curve) => ({ "--k": lookOf(curve).colour, "--dash": lookOf(curve).dash });

function drawCurves() {
  const curves = (data.curves ?? []).filter((curve) => (curve.points ?? []).some((point) => isNumber(point.value)));
  const states = [...SERIES]
    .sort(([a], [b]) => (a === view.series) - (b === view.series)) // the slider's own are drawn last, on top
    .flatMap(([, own]) => own)
    .filter((state) => isNumber(state.value));
  byId("curves").hidden = !curves.length && !states.length;
  if (byId("curves").hidden) return;
  byId("curves-title").textContent = `${METRIC} against open heads`;
  const shown = curves.filter((curve) => !view.hidden.has(curve.name));
  const width = Math.max(280, byId("chart").clientWidth),
    height = Math.round(Math.min(340, 160 + width * 0.22));
  const left = 36,
    right = width - 14,
    top = 12,
    bottom = height - 40;
  const all = [...curves.flatMap((curve) => curve.points), ...states];
  const most = Math.max(...all.map((point) => point.heads_open), TOTAL);
  const high = Math.max(...all.flatMap((point) => [point.value, point.high]).filter(isNumber));
  const step = high > 50 ? 20 : high > 20 ? 10 : high > 8 ? 5 : 2;
  const ceiling = Math.ceil((high * 1.02) / step) * step;
  const x = (heads) => left + ((most - heads) / most) * (right - left);
  const y = (value) => bottom - (value / ceiling) * (bottom - top);
  const ticks = [];
  for (let value = 0; value <= ceiling; value += step)
    ticks.push(
      el("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      el("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, String(value)),
    );
  const apart = Math.max(1, Math.ceil(most / (width < 480 ? 5 : 9)));
  const nice = [1, 2, 4, 5, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128].find((size) => size >= apart) ?? apart;
  for (let heads = 0; heads <= most; heads += nice)
    ticks.push(
      el("line", { class: "tick", x1: x(heads), x2: x(heads), y1: bottom, y2: bottom + 4 }),
      el("text", { x: x(heads), y: bottom + 18, "text-anchor": "middle" }, String(heads)),
    );
  ticks.push(
    el("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle", class: "axis" }, "open heads (fewer to the right)"),
  );
  const drawn = shown.map((curve) => curveLine(curve, x, y));
  const here = view.state;
  const rule = SERIES.size ? el("line", { class: "here", x1: x(here.heads_open), x2: x(here.heads_open), y1: top, y2: bottom }) : null;
  const points = states.map((state) => statePoint(state, x, y));
  const words =
    `${METRIC} against open heads. ` + states.map((state) => `${state.label}: ${state.heads_open} heads, ${scoreWords(state)}`).join("; ");
  byId("chart").replaceChildren(
    el("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words }, ticks, rule, drawn, points),
  );
  drawCurveLegend(curves, states.length > 0);
}

function curveLine(curve, x, y) {
  const points = curve.points.filter((point) => isNumber(point.value)).sort((a, b) => b.heads_open - a.heads_open);
  const banded = points.filter((point) => isNumber(point.low) && isNumber(point.high));
  const path = (list, key) => list.map((point) => `${x(point.heads_open).toFixed(1)},${y(point[key]).toFixed(1)}`).join("L");
  return el(
    "g",
    { class: "curve", style: colours(curve) },
    banded.length > 1 ? el("path", { class: "band", d: `M${path(banded, "high")}L${path([...banded].reverse(), "low")}Z` }) : null,
    el("path", { class: "line", d: "M" + path(points, "value") }),
    points.map((point) =>
      el(
        "path",
        { class: "point", d: marker(lookOf(curve).marker, x(point.heads_open), y(point.value)) },
        el(
          "title",
          {},
          `${curve.name}: ${point.heads_open} heads, ${METRIC} ${text(point.value, 1)}` +
            (isNumber(point.low) ? ` (${text(point.low, 1)} to ${text(point.high, 1)})` : ""),
        ),
      ),
    ),
  );
}

// The shape of one of matplotlib's markers, or one like it.
function marker(shape, x, y, r = 3.2) {
  if (shape === "s" || shape === "8") return `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`;
  if (shape === "v") return `M${x},${y + r + 1}L${x + r + 1},${y - r}H${x - r - 1}Z`;
  if ("^<>".includes(shape)) return `M${x},${y - r - 1}L${x + r + 1},${y + r}H${x - r - 1}Z`;
  if ("Dd".includes(shape)) return `M${x},${y - r - 1}L${x + r + 1},${y}L${x},${y + r + 1}L${x - r - 1},${y}Z`;
  if ("XP".includes(shape)) return `M${x - r},${y - r}L${x + r},${y + r}M${x - r},${y + r}L${x + r},${y - r}`;
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

const stateClass = (learned, mine) => "state" + (learned ? " learned" : "") + (mine ? "" : " aside");

function statePoint(state, x, y) {
  const [cx, cy] = [x(state.heads_open), y(state.value)];
  const chosen = state === view.state;
  const mine = SERIES.get(view.series).includes(state); // of the slider; the others stand behind, smaller
  return el(
    "g",
    { class: stateClass(state.learned, mine) + (chosen ? " chosen" : ""), onclick: mine ? () => chooseState(state) : null },
    mine && isNumber(state.low) ? el("line", { x1: cx, x2: cx, y1: y(state.low), y2: y(state.high) }) : null,
    el("circle", { cx, cy, r: 13, class: "reach" }),
    el("circle", { cx, cy, r: chosen ? 6.5 : mine ? 4.5 : 2.6, class: "dot" }),
    chosen
      ? el("text", { x: cx, y: cy < 42 ? cy + 26 : cy - 15, "text-anchor": cx > x(0) - 60 ? "end" : "middle", class: "halo" }, state.label)
      : null,
    el("title", {}, `${state.label}: ${state.heads_open} heads, ${scoreWords(state)}`),
  );
}

// Two curves of one name, of two files, are told apart by the files.
function nameCurves() {
  const names = (data.curves ?? []).map((curve) => curve.name);
  for (const [i, curve] of (data.curves ?? []).entries()) {
    curve.method = curve.name; // has the look
    if (names.indexOf(curve.name) !== names.lastIndexOf(curve.name)) curve.name = curve.file ?? `${curve.name} ${i + 1}`;
  }
}

function stateKey(words, learned, mine) {
  const dot = el("circle", { cx: 10, cy: 6, r: mine ? 4.5 : 2.6, class: "dot" });
  const line = mine ? el("line", { x1: 10, x2: 10, y1: 0, y2: 12 }) : null;
  const drawing = el("g", { class: stateClass(learned, mine) }, line, dot);
  return el("span", { class: "key" }, el("svg", { viewBox: "0 0 20 12", width: 20, height: 12, "aria-hidden": "true" }, drawing), words);
}

const isLearned = (series) => Boolean(SERIES.get(series)?.at(-1)?.learned);

function drawCurveLegend(curves, states) {
  const sample = (curve) =>
    el(
      "svg",
      { viewBox: "0 0 34 12", width: 34, height: 12, class: "curve", style: colours(curve), "aria-hidden": "true" },
      el("path", { class: "line", d: "M1,6H33" }),
      el("path", { class: "point", d: marker(lookOf(curve).marker, 17, 6) }),
    );
  const beams = [
    ...new Set(
      [
        ...(data.states ?? []).map((state) => [state.series ?? "steps", state.beam]),
        ...curves.map((curve) => [curve.name, curve.beam]),
      ]
        .filter(([, beam]) => beam)
        .map(([name, beam]) => `${name} beam ${beam}`),
    ),
  ];
  const differ = new Set(beams.map((words) => words.split(" beam ")[1])).size > 1;
  byId("curves-note").textContent = differ ? `Decoded with different beams, so small differences between these say nothing: ${list(beams)}.` : "";
  byId("chart-legend").replaceChildren(
    ...[
      states ? stateKey(`${view.series} (on the slider)`, isLearned(view.series), true) : null,
      ...[...SERIES.keys()].filter((name) => states && name !== view.series).map((name) => stateKey(`${name} (choose it above)`, isLearned(name), false)),
      ...curves.map((curve, number) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": !view.hidden.has(curve.name),
            title: "show or hide",
            onclick: () => {
              view.hidden.has(curve.name) ? view.hidden.delete(curve.name) : view.hidden.add(curve.name);
              drawCurves();
              [...byId("chart-legend").querySelectorAll("button")][number].focus();
            },
          },
          sample(curve),
          curve.name,
        ),
      ),
    ].filter(Boolean),
  );
}
