// Draws the charts of a page, and streams the answers of the playground. Texts are set as text, never as HTML.
(function () {
  "use strict";

  const charts = new Map();

  function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function stacked(series) {
    let below = series[0].values.map(() => 0);
    return series.map((one) => (below = one.values.map((value, i) => value + below[i])));
  }

  function draw(figure) {
    const spec = JSON.parse(figure.dataset.chart);
    if (charts.has(figure)) charts.get(figure).destroy();
    if (!spec.x.length || !spec.series.length) return;
    const ink = variable("--grey"), grid = { stroke: variable("--grid"), width: 1 };
    const data = [spec.x], series = [{ value: "{YYYY}-{MM}-{DD} {HH}:{mm}" }], bands = [];
    const shown = spec.stacked ? stacked(spec.series) : spec.series.map((one) => one.values);
    // the highest of a stack is drawn first, so that each of the others covers its lower part
    const order = spec.series.map((_, i) => (spec.stacked ? spec.series.length - 1 - i : i));
    for (const i of order) {
      const one = spec.series[i], colour = variable(one.colour);
      data.push(shown[i]);
      series.push({
        label: one.label, stroke: colour, width: spec.stacked ? 0.5 : 2, fill: spec.stacked ? colour : undefined,
        points: { show: spec.x.length < 2 || !spec.stacked && spec.x.length < 40 },
        value: (_u, _v, _s, at) => (at == null || one.values[at] == null ? "" : `${+one.values[at].toFixed(3)} ${spec.unit}`),
      });
      if (one.low) {
        for (const edge of [one.high, one.low]) {
          data.push(edge);
          series.push({ label: `${one.label} interval`, stroke: "transparent", points: { show: false }, class: "u-hidden" });
        }
        bands.push({ series: [data.length - 2, data.length - 1], fill: colour + "33" });
      }
    }
    charts.set(figure, new uPlot({
      width: figure.clientWidth, height: 220, series, bands, legend: { live: true }, cursor: { drag: { x: false, y: false } },
      scales: { x: spec.range ? { range: spec.range } : {}, y: spec.stacked ? { range: [0, 100] } : {} },
      axes: [{ stroke: ink, grid }, { stroke: ink, grid, size: 60, values: (_u, ticks) => ticks.map((tick) => `${+tick.toFixed(3)}`) }],
    }, data, figure));
    figure.querySelectorAll(".u-series.u-hidden").forEach((row) => row.remove());
    const canvas = figure.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", figure.dataset.title);
  }

  function drawAll() {
    for (const [figure, chart] of charts) {
      if (!figure.isConnected) { chart.destroy(); charts.delete(figure); }
    }
    document.querySelectorAll("[data-chart]").forEach((figure) => { if (!charts.has(figure)) draw(figure); });
  }

  function drawAgain() {
    charts.forEach((_chart, figure) => draw(figure));
  }

  window.addEventListener("DOMContentLoaded", drawAll);
  document.addEventListener("htmx:afterSettle", drawAll);
  window.addEventListener("resize", drawAgain);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
})();
