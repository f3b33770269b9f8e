// The card of one head: its roles against their baselines, its numbers among the heads of its kind, its gates, where it looks.

function drawCard() {
  const head = view.head;
  const parts = [
    el(
      "div",
      { class: "card-head" },
      el("span", { class: "chip big f-" + head.family.id, "aria-hidden": "true" }, head.family.letter),
      el(
        "div",
        {},
        el("h2", { id: "card-title", tabindex: "-1" }, head.name),
        el("p", { class: "note" }, `${KIND_WORDS[head.kind] ?? head.kind}, layer ${head.layer}, head ${head.head}`),
      ),
    ),
    rolesPart(head),
    statesPart(head),
    measuresPart(head),
    attentionPart(head),
    pathPart(head),
    offsetsPart(head),
  ];
  byId("card").replaceChildren(...parts.filter(Boolean));
}

function part(title, ...content) {
  return el("section", {}, el("h3", {}, title), content);
}

function rolesPart(head) {
  if (!head.roles.length) return part("Role", el("p", { class: "note" }, "No analysis names a role for this head."));
  const highest = Math.max(1, ...head.roles.flatMap((role) => [role.score, role.baseline]).filter(isNumber));
  const baselines = head.roles.some((role) => isNumber(role.baseline));
  return part(
    head.roles.length > 1 ? "Roles" : "Role",
    el(
      "ul",
      { class: "roles" },
      head.roles.map((role) => {
        const family = familyOf(role);
        const words = `${text(role.score, 2)}` + (isNumber(role.baseline) ? `, baseline ${text(role.baseline, 2)}` : "");
        return el(
          "li",
          { class: "f-" + family.id },
          el("span", { class: "chip f-" + family.id, "aria-hidden": "true" }, family.letter),
          el("span", { class: "what" }, roleWords(role.role)),
          el("span", { class: "number" }, words),
          isNumber(role.score)
            ? el(
                "span",
                { class: "bullet", "aria-hidden": "true", style: { "--of": Math.max(0, role.score) / highest } },
                isNumber(role.baseline) ? el("i", { style: { "--at": Math.max(0, role.baseline) / highest } }) : null,
              )
            : null,
          role.words ? el("span", { class: "note" }, String(role.words)) : null,
        );
      }),
    ),
    baselines ? el("p", { class: "note" }, "Bar: score; upright line: baseline.") : null,
  );
}

function measuresPart(head) {
  const rows = MEASURES.filter((measure) => isNumber(head[measure.key])).map((measure) => {
    const values = data.heads
      .filter((other) => other.kind === head.kind)
      .map((other) => other[measure.key])
      .filter(isNumber);
    const place = 1 + values.filter((value) => value > head[measure.key]).length;
    return el(
      "tr",
      {},
      el("th", { scope: "row", title: measure.what }, measure.words),
      el("td", { class: "number" }, text(head[measure.key], measure.digits)),
      el("td", {}, strip(values, head[measure.key])),
      el("td", { class: "place" }, values.length > 1 ? `${ordinal(place)} of ${values.length}` : ""),
    );
  });
  if (isNumber(head.lrp_signed))
    rows.push(
      el(
        "tr",
        {},
        el("th", { scope: "row", title: "relevance with its sign, of its layer's" }, "LRP signed"),
        el("td", { class: "number" }, text(head.lrp_signed)),
        el("td"),
        el("td"),
      ),
    );
  if (isNumber(head.ablation?.difference)) rows.push(ablationRow(head.ablation));
  return rows.length
    ? part(
        "Numbers",
        el("table", { class: "measures" }, el("tbody", {}, rows)),
        el(
          "p",
          { class: "note" },
          `Ticks: the heads of ${(KIND_WORDS[head.kind] ?? head.kind).toLowerCase()}, lowest to highest; 1st is the highest.`,
        ),
      )
    : null;
}

function ordinal(number) {
  const end = number % 100 > 10 && number % 100 < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th");
  return number + end;
}

function strip(values, own) {
  const low = Math.min(...values),
    high = Math.max(...values);
  const x = (value) => (4 + (high > low ? (value - low) / (high - low) : 0.5) * 92).toFixed(1);
  return el(
    "svg",
    { viewBox: "0 0 100 16", width: 100, height: 16, class: "strip", "aria-hidden": "true" },
    values.map((value) => el("line", { x1: x(value), x2: x(value), y1: 5, y2: 11 })),
    el("circle", { cx: x(own), cy: 8, r: 3.6 }),
  );
}

function ablationRow({ difference, p_value: p, p_value_holm: holm }) {
  const words = [isNumber(p) ? `p ${pValue(p)}` : null, isNumber(holm) ? `Holm ${pValue(holm)}` : null].filter(Boolean).join(", ");
  return el(
    "tr",
    {},
    el("th", { scope: "row", title: `${METRIC} without this one head, against ${METRIC} with all` }, "Removed alone"),
    el("td", { class: "number" }, (difference > 0 ? "+" : "") + text(difference, 2)),
    el("td", { class: "place", colspan: 2 }, `${METRIC}${words ? "; " + words : ""}`),
  );
}

function statesPart(head) {
  if (!SERIES.size) return null;
  const rows = [SERIES.get(view.series)].map((states) =>
    el(
      "ol",
      { class: "states" },
      states
        .filter((state) => !state.unpruned)
        .map((state) => {
          const open = isOpen(head, state);
          return el(
            "li",
            {},
            el(
              "button",
              {
                type: "button",
                class: (open ? "open" : "shut") + (state === view.state ? " on" : ""),
                "aria-label": `${state.label}: ${open ? "open" : "shut"}; show`,
                onclick: () => chooseState(state),
              },
              el("i", { class: "dot f-" + head.family.id }),
              state.label,
            ),
          );
        }),
    ),
  );
  return part("Open or shut", rows);
}

function pathPart(head) {
  const paths = Object.entries(head.gate_path ?? {}).filter(([, path]) => path.steps?.length);
  if (!paths.length) return null;
  const states = data.states ?? [];
  const label = (run) => states.find((state) => state.run === run)?.label ?? run;
  const width = 360,
    height = 132,
    left = 30,
    right = width - 62,
    top = 8,
    bottom = height - 24;
  const values = paths.flatMap(([, path]) => path.log_alpha).filter(isNumber);
  const low = Math.min(-1, ...values),
    high = Math.max(1, ...values),
    last = Math.max(...paths.flatMap(([, path]) => path.steps));
  const x = (step) => left + (step / Math.max(1, last)) * (right - left),
    y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const ends = paths
    .map(([run, path]) => ({ run, y: y(path.log_alpha[path.log_alpha.length - 1] ?? 0), x: x(path.steps[path.steps.length - 1]) }))
    .sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => {
    end.at = i ? Math.max(end.y, ends[i - 1].at + 12) : Math.max(top + 4, end.y);
  });
  const over = Math.max(0, (ends[ends.length - 1]?.at ?? 0) - bottom);
  const strength = (run) => 0.45 + 0.55 * ((paths.findIndex(([name]) => name === run) + 1) / paths.length);
  return part(
    "Gate while training",
    el(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        class: "paths f-" + head.family.id,
        role: "img",
        "aria-label": ends
          .map((end) => `${label(end.run)}: log alpha ends ${end.y <= y(0) ? "above 0, open" : "below 0, shut"}`)
          .join("; "),
      },
      el("line", { class: "zero", x1: left, x2: right, y1: y(0), y2: y(0) }),
      el("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"),
      el("text", { x: left - 6, y: top + 8, "text-anchor": "end" }, text(high, 0)),
      y(low) - y(0) > 16 ? el("text", { x: left - 6, y: bottom, "text-anchor": "end" }, text(low, 0)) : null,
      el("text", { x: left, y: height - 6 }, "step 0"),
      el("text", { x: right, y: height - 6, "text-anchor": "end" }, last.toLocaleString("en")),
      paths.map(([run, path]) =>
        el("path", {
          class: "line" + (view.state.run === run ? " on" : ""),
          "stroke-opacity": strength(run),
          d:
            "M" +
            path.steps
              .map((step, i) => (isNumber(path.log_alpha[i]) ? `${x(step).toFixed(1)},${y(path.log_alpha[i]).toFixed(1)}` : null))
              .filter(Boolean)
              .join("L"),
        }),
      ),
      ends.map((end) =>
        el("text", { x: end.x + 6, y: end.at + 4 - over, class: view.state.run === end.run ? "on" : null }, label(end.run)),
      ),
    ),
    el("p", { class: "note" }, "log α of the gate; above 0 it ends open."),
  );
}

function offsetsPart(head) {
  const offsets = (head.offsets ?? []).filter(([, share]) => isNumber(share)).slice(0, 5);
  if (!offsets.length) return null;
  return part(
    "Offsets of its largest weights",
    el(
      "ul",
      { class: "offsets" },
      offsets.map(([offset, share]) =>
        el(
          "li",
          { class: "f-" + (share >= 0.9 ? "positional" : "none") },
          el("span", { class: "number" }, (offset > 0 ? "+" : "") + text(offset, 0)),
          el("span", { class: "bullet", "aria-hidden": "true", style: { "--of": share } }),
          el("span", { class: "number" }, percent(share)),
        ),
      ),
    ),
  );
}
