// Draws the charts of a page, keeps in its address what is open, copies that address, and streams the answers of the
// playground. Texts are set as text, never as HTML.
(function () {
  "use strict";

  const charts = new Map();

  // Times are those of the reader's zone, of 24 hours; without scripts they are UTC.
  function local(date) {
    const two = (n) => String(n).padStart(2, "0");
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return [day, [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":")];
  }

  function localise() {
    document.querySelectorAll("time[datetime]:not([title])").forEach((time) => {
      const date = new Date(time.dateTime);
      if (isNaN(date)) return;
      const [day, clock] = local(date);
      time.title = time.textContent;
      time.textContent = time.className === "clock" ? clock : `${day} ${clock.slice(0, 5)}`;
    });
  }

  window.addEventListener("DOMContentLoaded", localise);
  document.addEventListener("htmx:afterSettle", localise);

  const WHOLE = [1, 2, 5].flatMap((step) => [...Array(9).keys()].map((digits) => step * 10 ** digits)).sort((a, b) => a - b);

  function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function stacked(series) {
    let below = series[0].values.map(() => 0);
    return series.map((one) => (below = one.values.map((value, i) => (value == null ? null : value + below[i]))));
  }

  // numbered lines where something changed: the numbers are those of the list below the chart
  function marked(chart, marks) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = variable("--grey");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    let after = -Infinity;
    marks.forEach((at, i) => {
      const x = chart.valToPos(at, "x", true);
      ctx.setLineDash([3 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (x - after < 14 * devicePixelRatio) return;
      ctx.fillText(`${i + 1}`, x, bbox.top - 3 * devicePixelRatio);
      after = x;
    });
    ctx.restore();
  }

  function draw(figure) {
    const spec = JSON.parse(figure.dataset.chart);
    if (charts.has(figure)) charts.get(figure).destroy();
    if (!spec.x.length || !spec.series.length) return;
    const ink = variable("--grey"), grid = { stroke: variable("--grid"), width: 1 };
    const data = [spec.x], series = [{ label: spec.counts }], bands = [];
    const shown = spec.stacked ? stacked(spec.series) : spec.series.map((one) => one.values);
    // the highest of a stack is drawn first, so that each of the others covers its lower part
    const order = spec.series.map((_, i) => (spec.stacked ? spec.series.length - 1 - i : i));
    for (const i of order) {
      const one = spec.series[i], colour = variable(one.colour);
      data.push(shown[i]);
      series.push({
        label: one.label, stroke: colour, width: spec.stacked ? 0.5 : 2, dash: one.dashed ? [6, 5] : undefined, fill: spec.stacked ? colour : undefined,
        points: { show: !one.dashed && !spec.levels && spec.x.length < 40 }, paths: spec.levels ? uPlot.paths.stepped({ align: 1 }) : undefined,
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
      width: figure.clientWidth, height: 220, series, bands, legend: { live: true }, cursor: { drag: { x: false, y: false }, dataIdx: (_chart, _series, at, x) => (spec.levels && at && spec.x[at] > x ? at - 1 : at) },
      hooks: { draw: [(chart) => marked(chart, spec.marks || [])] },
      scales: { x: { time: false, range: spec.range }, y: spec.stacked ? { range: [0, 100] } : spec.bounds ? { range: spec.bounds } : {} },
      axes: [{ stroke: ink, grid, space: 50, incrs: WHOLE, values: (_u, ticks) => ticks.map((tick) => tick.toLocaleString("en")) }, { stroke: ink, grid, size: 60, values: (_u, ticks) => ticks.map((tick) => `${+tick.toFixed(3)}`) }],
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

  // -- the address of this view --------------------------------------------------------------------

  const OPEN = "open";

  function opened() {
    return new Set((new URLSearchParams(location.search).get(OPEN) || "").split(",").filter(Boolean));
  }

  // what is open is a field of the address: a name of its own, or its id among those of `open`
  function remember(details) {
    const url = new URL(location.href), fields = url.searchParams, { field, value, also } = details.dataset;
    if (field) {
      if (details.open === (fields.get(field) === value)) return;
      if (details.open) fields.set(field, value); else fields.delete(field);
      fields.delete(also);
    } else {
      const ids = opened();
      if (details.open) ids.add(details.id); else ids.delete(details.id);
      if (ids.size) fields.set(OPEN, [...ids].join(",")); else fields.delete(OPEN);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  function reopen() {
    for (const id of opened()) {
      const details = document.getElementById(id);
      if (details instanceof HTMLDetailsElement) details.open = true;
    }
  }

  // what was opened while the page was loading, when nothing heard it
  function catchUp() {
    for (const details of document.querySelectorAll("details[open]")) details.dispatchEvent(new Event("toggle"));
  }

  async function copyLink(button) {
    const link = new URL(button.dataset.link || location.href, location.href).href, field = document.getElementById("link");
    const output = button.parentElement.querySelector("output");
    field.hidden = true;
    try {
      await navigator.clipboard.writeText(link);
      output.textContent = "Copied";
    } catch {  // a page without HTTPS has no clipboard
      field.value = link;
      field.hidden = false;
      field.focus();
      field.select();
      output.textContent = "Copy it from here:";
    }
  }

  window.addEventListener("DOMContentLoaded", catchUp);
  window.addEventListener("DOMContentLoaded", reopen);
  document.addEventListener("htmx:afterSettle", reopen);
  document.addEventListener("toggle", (event) => {
    if (event.target.id || event.target.dataset.field) remember(event.target);
  }, true);
  document.addEventListener("click", (event) => {
    if (event.target.id === "copy-link") copyLink(event.target);
  });

  // -- the playground ------------------------------------------------------------------------------

  let asking = null;

  function bodyOf(question, model) {
    return { model, messages: [{ role: "user", content: question }], stream: true, agent: { return: ["passages"] } };
  }

  async function* eventsOf(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (left + value).split("\n\n");
      left = parts.pop();
      for (const part of parts) {
        // a comment says that the answer is still being written
        const data = part.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  }

  function listPassages(card, passages) {
    const details = card.querySelector(".passages");
    details.hidden = !passages.length;
    details.querySelector("summary").textContent = `${passages.length} passages with scores`;
    for (const passage of passages) {
      const item = document.createElement("li"), title = document.createElement("strong");
      title.textContent = `${passage.title || passage.id} (${passage.score.toFixed(3)})`;
      const text = document.createElement("div");
      text.className = "text-of";
      text.dir = "auto";
      text.textContent = passage.text;
      item.append(title, text);
      details.querySelector("ol").append(item);
    }
  }

  async function answer(form, question, model, signal) {
    const card = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    const text = card.querySelector(".text-of"), problem = card.querySelector(".problem");
    card.querySelector("h2").textContent = model.endsWith("auto") ? "…" : model.replace(/.*arm\//, "");
    document.getElementById("answers").append(card);
    function fail(message) {
      problem.textContent = message;
      problem.hidden = false;
    }
    let id = null;
    try {
      const response = await fetch(form.dataset.ask, {
        method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(bodyOf(question, model)),
      });
      if (!response.ok) {
        const error = (await response.json()).error;
        fail(error.code === "unauthorized" ? "Your key has expired or was disabled. Reload the page and sign in." : error.message);
        return;
      }
      for await (const event of eventsOf(response)) {
        if (event.error) { fail(event.error.message); continue; }
        const delta = event.choices?.[0]?.delta;
        if (event.agent && event.agent.passages) {
          id = event.agent.decision_id;
          card.querySelector("h2").textContent = event.model.replace("arm/", "");
          listPassages(card, event.agent.passages);
        }
        if (delta && delta.content) text.append(delta.content);
      }
      const cited = new Set([...text.textContent.matchAll(/\[(\d+)\]/g)].map((found) => found[1]));
      card.querySelectorAll(".passages li").forEach((item, i) => { if (cited.has(`${i + 1}`)) item.firstChild.append(" cited"); });
      if (id) await htmx.ajax("GET", form.dataset.asked + encodeURIComponent(id), { target: card.querySelector(".after"), swap: "innerHTML" });
    } catch (error) {
      if (error.name !== "AbortError") fail(`The connection was lost: ${error.message}`);
    } finally {
      text.setAttribute("aria-busy", "false");
    }
  }

  function sayTheSame(question, model) {
    const service = location.origin + document.body.dataset.base.replace(/\/console$/, "");
    const body = { model, messages: [{ role: "user", content: question }] };
    document.getElementById("curl").textContent =
      `curl ${service}/v1/chat/completions -H 'content-type: application/json' -H "authorization: Bearer $ARMWISE_API_KEY" \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
    document.getElementById("python").textContent =
      `from openai import OpenAI\n\nclient = OpenAI(base_url="${service}/v1", api_key=os.environ.get("ARMWISE_API_KEY", "none"))\n` +
      `reply = client.chat.completions.create(\n    model=${JSON.stringify(model)}, messages=[{"role": "user", "content": ${JSON.stringify(question)}}]\n)\nprint(reply.choices[0].message.content)`;
    document.getElementById("python").prepend("import os\n\n");
    document.getElementById("same").hidden = false;
  }

  function fillIn() {
    const form = document.getElementById("ask"), fields = new URLSearchParams(location.hash.slice(1));
    if (!form) return;
    form.elements.question.value = fields.get("question") || "";
    if ([...form.elements.model.options].some((option) => option.value === fields.get("model"))) form.elements.model.value = fields.get("model");
  }

  window.addEventListener("DOMContentLoaded", fillIn);

  async function askInTurn(form, question, models, signal) {
    for (const model of models) if (!signal.aborted) await answer(form, question, model, signal);
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.id !== "ask") return;
    event.preventDefault();
    const question = form.elements.question.value, every = event.submitter && event.submitter.value === "all";
    const models = [...form.elements.model.options].map((option) => option.value);
    // behind the #, which is not sent to the service: a question may be private
    history.replaceState(history.state, "", "#" + new URLSearchParams({ question, model: form.elements.model.value }));
    if (asking) asking.abort();
    asking = new AbortController();
    document.getElementById("answers").replaceChildren();
    sayTheSame(question, every ? models[0] : form.elements.model.value);
    askInTurn(form, question, every ? models.slice(1) : [form.elements.model.value], asking.signal);
  });
})();
