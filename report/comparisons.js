// The comparisons of what was made of this base: what they say in words, and their figure. Their points are in the tables.

function drawComparisons() {
  const comparisons = data.comparisons ?? [];
  byId("comparisons").hidden = !comparisons.length;
  byId("comparisons-body").replaceChildren(
    ...comparisons.map((comparison) =>
      el(
        "article",
        {},
        el("h3", {}, comparison.title),
        el("img", { src: comparison.figure, alt: `${METRIC} against open heads for every method; the table below has the numbers` }),
        el("ul", {}, (comparison.summary ?? []).map((sentence) => el("li", {}, sentence))),
      ),
    ),
  );
}
