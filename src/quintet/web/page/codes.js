// Maps of a tokenizer's codes: the used fraction of each codebook over training, and the usage of each code.
"use strict";

(function () {
  const { make, source, attempt, number, integer, heat } = quintet;

  /** A heat map of rows of values from 0 to 1; null is a cell without a value. */
  function map(rows, label) {
    const [width, height] = [Math.max(...rows.map((row) => row.length)), rows.length];
    const canvas = make("canvas", { class: "heat", width, height, role: "img", "aria-label": label });
    canvas.style.setProperty("--count", String(height));
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    rows.forEach((row, y) => row.forEach((level, x) => {
      if (level !== null) image.data.set([...heat(level), 255], (y * width + x) * 4);
    }));
    context.putImageData(image, 0, 0);
    return canvas;
  }

  function scale(low, high) {
    return make("p", { class: "scale" }, low, map([Array.from({ length: 64 }, (_, at) => at / 63)], "Scale"), high);
  }

  async function overTime(id, metrics) {
    const levels = metrics.filter((name) => /^validation\/codebook_usage_level_\d+$/.test(name)).sort((a, b) => parseInt(a.split("_").pop(), 10) - parseInt(b.split("_").pop(), 10));
    const names = levels.length ? levels : ["validation/codebook_usage"];
    const found = await attempt(source.curves(id, names, null, 400, true));
    const shown = found ? names.filter((name) => found[name]) : [];
    if (!shown.length) return [];
    const steps = found[shown[0]].steps;
    const rows = shown.map((name) => found[name].mean);
    const last = rows.map((row) => `${number(100 * row[row.length - 1], 3)} %`);
    return [make("section", {}, make("h3", {}, "Fraction of codes in use, at each validation"),
      make("div", { class: "heatmap" },
        make("div", { class: "rows" }, shown.map((_, at) => make("span", {}, shown.length > 1 ? `quantizer ${at + 1}` : "codebook"))),
        map(rows, `Codes in use from step ${integer(steps[0])} to step ${integer(steps[steps.length - 1])}; at the end ${last.join(", ")}`),
        make("div", { class: "rows" }, last.map((text) => make("span", {}, text)))),
      make("p", { class: "axis" }, make("span", {}, `step ${integer(steps[0])}`), make("span", {}, `step ${integer(steps[steps.length - 1])}`)), scale("0 %", "100 %"))];
  }

  /** Usage from a thousandth of the mean to thirty times the mean, on a logarithmic scale. */
  function level(usage) {
    return usage < 1e-3 ? 0 : 0.08 + (0.92 * (Math.log10(usage) + 3)) / 4.5;
  }

  function perCode(codes) {
    const single = codes.levels.length === 1;
    const cells = codes.levels[0].cells;
    const rows = single ? Array.from({ length: Math.ceil(cells.length / 64) }, (_, row) => cells.slice(row * 64, row * 64 + 64).map(level)) : codes.levels.map((each) => each.cells.map(level));
    const used = codes.levels.map((each) => `${number(100 * each.used, 3)} %`);
    const grouped = cells.length < codes.levels[0].size ? `; ${Math.ceil(codes.levels[0].size / cells.length)} codes per cell` : "";
    return make("section", {}, make("h3", {}, `Usage of each code at step ${integer(codes.step)}`),
      make("div", { class: "heatmap" },
        !single && make("div", { class: "rows" }, codes.levels.map((_, at) => make("span", {}, `quantizer ${at + 1}`))),
        Object.assign(map(rows, `Use of ${codes.levels.map((each) => each.size).join(", ")} codes; in use: ${used.join(", ")}`), { className: single ? "heat square" : "heat" }),
        !single && make("div", { class: "rows" }, used.map((text) => make("span", {}, text)))),
      make("p", { class: "axis" }, make("span", {}, single ? `64 codes per row; ${used[0]} used recently in training${grouped}` : `from code 0 to code ${integer(codes.levels[0].size - 1)}, and the fraction used recently in training${grouped}`)),
      scale("never", "30 times the mean"));
  }

  async function panel(id, about) {
    const parts = await overTime(id, Object.keys(about.metrics));
    if (about.codes) parts.push(perCode(about.codes));
    return make("div", { class: "codes" }, parts.length ? parts : make("p", { class: "empty" }, "No usage yet. It is measured at each validation."));
  }

  quintet.codes = { panel, has: (about) => Boolean(about.codes) || Object.keys(about.metrics).some((name) => name.includes("codebook_usage")) };
})();
