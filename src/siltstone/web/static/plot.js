"use strict";
// A topic's history as a plot of the table beside it: bytes before and after each cleaning, settings as marks.
function plot(figure) {
  const rows = [...document.querySelectorAll("tr[data-at]")].reverse();
  const cleanings = rows.filter((row) => row.dataset.before !== undefined);
  if (cleanings.length < 2 || typeof uPlot === "undefined") return;
  const colour = (name) => () => getComputedStyle(figure.querySelector(`.${name}`)).color;
  const column = (name) => cleanings.map((row) => Number(row.dataset[name]));
  // The other rows are changes of settings: their times in seconds.
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
    padding: [null, 36, null, null], axes: [{ ...axis, space: 90, values: "{YYYY}-{MM}-{DD}\n{HH}:{mm}:{ss}" }, { ...axis, size: 80, values: (_, values) => values.map(size) }],
  }, [column("at").map((at) => at / 1000), column("before"), column("after")], figure.querySelector(".plot"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false));
  new ResizeObserver(() => chart.setSize({ width: figure.clientWidth, height: 240 })).observe(figure);
}
