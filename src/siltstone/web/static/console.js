"use strict";
// What pages do beyond links and forms. Without script everything else works. No inline script, no eval.

const ROWS_MAX = 500;

// A list that polls stays as it is while somebody ticks rows or writes in it, and while nobody sees it.
let lastAnswer = new Date();
document.addEventListener("htmx:before:request", (event) => {
  const live = event.target.id === "live" ? event.target : null;
  const busy = live && (live.querySelector("input[name=topic]:checked") || live.querySelector("input:focus, select:focus, textarea:focus"));
  if (document.hidden || busy) event.preventDefault();
});
// The focus is on the same link again when its table was replaced.
let focused = null;
document.addEventListener("htmx:before:swap", () => {
  const active = document.activeElement;
  focused = active && active.closest("#live") ? active.getAttribute("href") : null;
});
document.addEventListener("htmx:after:swap", () => {
  if (focused) for (const link of document.querySelectorAll("#live a")) if (link.getAttribute("href") === focused) { link.focus({ preventScroll: true }); break; }
  begin(document);
});
function connection(isLost) {
  const note = document.getElementById("connection");
  if (!isLost) lastAnswer = new Date();
  if (note) note.textContent = isLost ? `Not connected since ${lastAnswer.toISOString().slice(11, 19)} UTC; what is shown is older.` : "";
}
document.addEventListener("htmx:after:request", () => connection(false));
document.addEventListener("htmx:error", () => connection(true));

// New records as they come: rows of HTML from the server, the newest first, at most ROWS_MAX of them.
function follow(button) {
  const status = document.getElementById("tail-status"), body = document.querySelector("table.records tbody");
  let source = null, count = 0;
  const stop = (why) => {
    if (source) source.close();
    source = null;
    button.textContent = "Follow";
    status.textContent = why;
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (source) return stop(`Stopped after ${count} new records.`);
    count = 0;
    source = new EventSource(button.dataset.tail);
    button.textContent = "Stop";
    status.textContent = "Waiting for new records …";
    source.addEventListener("records", (event) => {
      const rows = document.createElement("template");
      rows.innerHTML = event.data;
      count += rows.content.childElementCount;
      body.prepend(rows.content);
      while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
      status.textContent = `Following: ${count} new records.`;
    });
    source.addEventListener("end", (event) => stop(event.data));
    source.addEventListener("error", () => stop(`Not connected since ${new Date().toISOString().slice(11, 19)} UTC. Follow again.`));
  });
}

// A topic's history as a plot of the table beside it: bytes before and after each cleaning, settings as marks.
function plot(figure) {
  const rows = [...document.querySelectorAll("tr[data-at]")].reverse();
  const cleanings = rows.filter((row) => row.dataset.before !== undefined);
  if (cleanings.length < 2 || typeof uPlot === "undefined") return;
  const colour = (name) => getComputedStyle(figure.querySelector(`.${name}`)).color;
  const column = (name) => cleanings.map((row) => Number(row.dataset[name]));
  const marks = rows.filter((row) => row.dataset.before === undefined).map((row) => Number(row.dataset.at) / 1000);
  const size = (value) => value >= 1e9 ? `${value / 1e9} GB` : value >= 1e6 ? `${value / 1e6} MB` : value >= 1e3 ? `${value / 1e3} kB` : `${value} B`;
  const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const draw = (chart) => {
    chart.ctx.strokeStyle = colour("ink");
    for (const at of marks) {
      const x = chart.valToPos(at, "x", true);
      chart.ctx.beginPath(); chart.ctx.moveTo(x, chart.bbox.top); chart.ctx.lineTo(x, chart.bbox.top + chart.bbox.height); chart.ctx.stroke();
    }
  };
  figure.hidden = false;
  const chart = new uPlot({
    width: figure.clientWidth, height: 240, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"), hooks: { draw: [draw] },
    series: [{}, { label: "before", stroke: colour("before"), width: 2, dash: [6, 3] }, { label: "after", stroke: colour("after"), width: 2, fill: colour("fill") }],
    axes: [axis, { ...axis, size: 80, values: (_, values) => values.map(size) }], scales: { y: { range: (_, low, high) => [0, high] } }, legend: { show: false },
  }, [column("at").map((at) => at / 1000), column("before"), column("after")], figure.querySelector(".plot"));
  new ResizeObserver(() => chart.setSize({ width: figure.clientWidth, height: 240 })).observe(figure);
}

// Once for each element, also when a part of the page was replaced.
function begin(root) {
  const starts = { "[data-tail]": follow, "[data-plot]": plot };
  for (const [selector, start] of Object.entries(starts)) for (const element of root.querySelectorAll(selector)) if (!element.dataset.begun) { element.dataset.begun = "yes"; start(element); }
}
begin(document);
