// The page as a whole: title and summary, what happens when the reader chooses a head or a state, the theme, where the numbers come from.

function choose(head, asked) {
  view.head = head;
  paintChosen();
  drawCard();
  markRow();
  if (!asked) return;
  history.replaceState(null, "", "#" + head.name);
  byId("said").textContent = `Card of ${head.name}: ${head.roles.map((role) => roleWords(role.role)).join(", ") || "no role found"}`;
  const box = byId("card").getBoundingClientRect();
  if (box.top < 0 || box.top > innerHeight - 160)
    byId("card").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "start" });
  else byId("card").scrollTop = 0;
}

function chooseState(state) {
  view.state = state;
  paintSlider();
  paintState();
  drawCurves();
  const top = byId("card").scrollTop;
  drawCard();
  byId("card").scrollTop = top;
}

function drawTitle() {
  byId("title").textContent = data.run ?? "Attention heads";
  byId("place").textContent = [
    "headgates",
    data.system && data.system !== "base"
      ? `its own model, ${data.system}`
      : data.base && data.base !== data.run
        ? `base ${data.base}`
        : "attention heads of the base model",
  ].join(" · ");
  const named = data.heads.filter((head) => head.roles.length).length;
  const parts = FOUND.filter((family) => family !== NO_FAMILY).map(
    (family) => `${data.heads.filter((head) => head.families.includes(family)).length} ${family.words}`,
  );
  const layers = new Set(data.heads.map((head) => head.site)).size;
  byId("summary").textContent =
    `${plural(TOTAL, "head")} in ${plural(layers, "attention layer")}. ` +
    (named ? `${named} ${named === 1 ? "has" : "have"} a role that can be named: ${list(parts)}.` : "No analysis has named a role for any of them.");
  if (named && data.heads.some((head) => head.families.length > 1)) byId("summary").textContent += " Some have more than one.";
}

function drawControls() {
  const known = MEASURES.filter((measure) => measure.known && measure.key !== "entropy");
  const series = el(
    "select",
    {
      id: "series",
      onchange: () => {
        view.series = series.value;
        view.state = startState();
        drawSlider();
        chooseState(view.state);
      },
    },
    [...SERIES.keys()].map((name) => el("option", { value: name }, name)),
  );
  const select = el(
    "select",
    {
      id: "size",
      onchange: () => {
        sizeBy(known.find((measure) => measure.key === select.value) ?? null);
        paintState();
      },
    },
    known.map((measure) => el("option", { value: measure.key }, measure.words)),
    el("option", { value: "" }, "All alike"),
  );
  byId("controls").append(
    ...[
      SERIES.size > 1 ? el("label", { class: "choice" }, "Pruned by ", series) : "",
      known.length ? el("label", { class: "choice" }, "Size ", select) : "",
    ],
  );
  sizeBy(known[0] ?? null);
}

function drawTheme() {
  const dark = () =>
    (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => {
    byId("theme").textContent = dark() ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  };
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

function flatPairs(value, before = "") {
  return Object.entries(value ?? {})
    .flatMap(([key, item]) =>
      item && typeof item === "object" && !Array.isArray(item)
        ? flatPairs(item, before + key + " ")
        : [[before + key, Array.isArray(item) ? item.join(" ") : item]],
    )
    .filter(([, item]) => item !== null && item !== undefined && item !== "");
}

function plainly(item) {
  return isNumber(item) && !Number.isInteger(item) ? String(Number(item.toPrecision(4))) : String(item);
}

function drawFooter() {
  const pairs = (title, value) => {
    const found = flatPairs(value);
    return found.length
      ? el(
          "details",
          {},
          el("summary", {}, title),
          el(
            "dl",
            {},
            found.flatMap(([key, item]) => [el("dt", {}, key.replace(/_/g, " ")), el("dd", {}, plainly(item))]),
          ),
        )
      : null;
  };
  const words = [
    ...FAMILIES.filter((family) => FOUND.includes(family)).map((family) => [`${family.letter} ${family.words}`, family.what]),
    ...MEASURES.filter((measure) => measure.known).map((measure) => [measure.words, measure.what]),
  ];
  byId("footer").replaceChildren(
    ...[
      pairs("What the words mean", Object.fromEntries(words)),
      pairs("Settings of the analyses", data.settings),
      pairs("What made this page", data.made),
    ].filter(Boolean),
  );
}

function choosable() {
  const named = headByName.get(decodeURIComponent(location.hash.slice(1)));
  const value = (head) => (head.roles.length ? 1e6 : 0) + (head[view.size?.key] ?? 0);
  return named ?? data.heads.reduce((best, head) => (value(head) > value(best) ? head : best));
}

function open() {
  nameCurves();
  drawTitle();
  drawTheme();
  drawMap();
  fitMap();
  drawControls();
  if (SERIES.size) {
    view.series = SERIES.keys().next().value;
    view.state = startState();
  }
  choose(choosable(), false);
  drawSlider();
  paintState();
  drawCurves();
  drawTabs();
  drawFooter();
  addEventListener("hashchange", () => {
    const head = headByName.get(decodeURIComponent(location.hash.slice(1)));
    if (head) choose(head, true);
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      fitMap();
      drawCurves();
    }
  });
  byId("card").addEventListener("keydown", (event) => {
    if (event.key === "Escape") view.head.mark.focus();
  });
  document.documentElement.dataset.ready = Math.round(performance.now()); // milliseconds since the page was asked for; the tests read it
}

open();
