"use strict";
// What pages do beyond links and forms. Without script everything else works. No inline script, no eval.
const ROWS_MAX = 500;
// A list that polls stays as it is while a user ticks rows or writes in it, and while its tab is hidden.
let lastAnswer = new Date();
document.addEventListener("htmx:before:request", (event) => {
  const live = event.target.id === "live" ? event.target : null;
  const isBusy = live && live.querySelector("input:checked, input:not([type=checkbox]):focus, select:focus, textarea:focus");
  if (document.hidden || isBusy) event.preventDefault();
});
// When a part of the page was replaced, the focus is on the same link again, and what was open or scrolled still is.
const states = [["details", "open"], [".scroll", "scrollLeft"]], all = (selector) => [...document.querySelectorAll(`#live ${selector}`)];
let focused = null, kept = [[], []];
document.addEventListener("htmx:before:swap", () => {
  const active = document.activeElement;
  focused = active && active.closest("#live") ? active.getAttribute("href") : null;
  kept = states.map(([selector, name]) => all(selector).map((element) => element[name]));
});
document.addEventListener("htmx:after:swap", () => {
  states.forEach(([selector, name], at) => all(selector).forEach((element, index) => { if (index in kept[at]) element[name] = kept[at][index]; }));
  const link = all("a").find((each) => each.getAttribute("href") === focused);
  if (focused && link) link.focus({ preventScroll: true });
  begin();
});
function connection(isLost) {
  if (!isLost) lastAnswer = new Date();
  const since = `Not connected since ${lastAnswer.toISOString().slice(11, 19)} UTC; what is shown is older.`;
  document.getElementById("connection").textContent = isLost ? since : "";
}
for (const [name, isLost] of [["after:request", false], ["error", true]]) document.addEventListener(`htmx:${name}`, () => connection(isLost));

// New records as they come: rows of HTML from the server, the newest first, at most ROWS_MAX of them.
function follow(button) {
  const status = document.getElementById("tail-status"), body = document.querySelector("table.records tbody");
  const told = () => `${count} new record${count === 1 ? "" : "s"}.`;
  let source = null, count = 0;
  const stop = (why) => {
    if (source) source.close();
    source = null;
    button.textContent = "Follow";
    status.textContent = why;
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (source) return stop(`Stopped after ${told()}`);
    count = 0;
    source = new EventSource(button.dataset.tail);
    button.textContent = "Stop";
    status.textContent = "Waiting for new records …";
    source.addEventListener("records", (event) => {
      body.querySelector("td.none")?.parentNode.remove();
      const before = body.childElementCount;
      body.insertAdjacentHTML("afterbegin", event.data);
      count += body.childElementCount - before;
      while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
      status.textContent = `Following: ${told()}`;
    });
    source.addEventListener("end", (event) => stop(event.data));
    source.addEventListener("error", () => stop("Not connected: the server is gone, or too many follow already. Try again."));
  });
}

// A topic's history as a plot of the table beside it: bytes before and after each cleaning, settings as marks.
function plot(figure) {
  const rows = [...document.querySelectorAll("tr[data-at]")].reverse();
  const cleanings = rows.filter((row) => row.dataset.before !== undefined);
  if (cleanings.length < 2 || typeof uPlot === "undefined") return;
  const colour = (name) => () => getComputedStyle(figure.querySelector(`.${name}`)).color;
  const column = (name) => cleanings.map((row) => Number(row.dataset[name]));
  const marks = rows.filter((row) => !cleanings.includes(row)).map((row) => Number(row.dataset.at) / 1000);
  const unit = (value) => [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([least]) => value >= least) || [1, "B"];
  const size = (value) => `${value / unit(value)[0]} ${unit(value)[1]}`;
  const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const draw = (chart) => {
    chart.ctx.strokeStyle = colour("ink")();
    for (const at of marks) {
      const x = chart.valToPos(at, "x", true);
      chart.ctx.strokeRect(x, chart.bbox.top, 0, chart.bbox.height);
    }
  };
  figure.hidden = false;
  const lines = [["before", { dash: [6, 3] }], ["after", { fill: colour("fill") }]];
  const series = lines.map(([name, look]) => ({ label: name, stroke: colour(name), width: 2, ...look }));
  const chart = new uPlot({
    width: figure.clientWidth, height: 240, legend: { show: false }, hooks: { draw: [draw] }, series: [{}, ...series],
    tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"), scales: { y: { range: (_, low, high) => [0, high] } },
    padding: [null, 36, null, null], axes: [{ ...axis, space: 70, values: "{YYYY}-{MM}-{DD}\n{HH}:{mm}:{ss}" }, { ...axis, size: 80, values: (_, values) => values.map(size) }],
  }, [column("at").map((at) => at / 1000), column("before"), column("after")], figure.querySelector(".plot"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false));
  new ResizeObserver(() => chart.setSize({ width: figure.clientWidth, height: 240 })).observe(figure);
}

// Once for each element, also when a part of the page was replaced.
function begin() {
  for (const [selector, start] of [["[data-tail]", follow], ["[data-plot]", plot]]) {
    for (const element of document.querySelectorAll(`${selector}:not([data-begun])`)) { element.dataset.begun = "yes"; start(element); }
  }
}
begin();
