// What stands around both pages: the switch of the theme, and downloads.

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

// Draw again what is as wide as its place: the window has another width, or a second card takes some of it.
function onWidth(draw) {
  let width = byId("left").clientWidth;
  new ResizeObserver(() => {
    if (byId("left").clientWidth === width) return;
    width = byId("left").clientWidth;
    draw();
  }).observe(byId("left"));
}

// A link that saves what `make` gives under this name when it is clicked.
function download(words, name, type, make) {
  const onclick = (event) => {
    const url = URL.createObjectURL(new Blob([make()], { type }));
    el("a", { href: url, download: `${data.run ?? "report"}-${name()}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  return button({ class: "download", onclick }, words);
}

// not the shorthand font: it is empty where figures are tabular
const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

// A drawing as a file of its own: what the style sheet says of its elements is written into them.
function svgFile(drawing) {
  const copy = drawing.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [drawing, ...drawing.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(element);
    copies[i].setAttribute("style", DRAWN.map((property) => `${property}:${style.getPropertyValue(property)}`).join(";"));
  });
  copy.setAttribute("xmlns", SVG);
  return new XMLSerializer().serializeToString(copy);
}
