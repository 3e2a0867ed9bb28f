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
// When a part of the page was replaced, the focus is on the same link, button or field again, and what was open or scrolled still is.
// The old elements are gone then: the new one is the one with the same identity, or the place-th of those that are alike.
const states = [["details", "open"], [".scroll", "scrollLeft"]], all = (selector) => [...document.querySelectorAll(`#live ${selector}`)];
const identity = (one) => [one.tagName, one.getAttribute("href"), one.form?.getAttribute("action"), one.name, one.value, one.ariaLabel, one.matches("button, summary") && one.textContent].join();
const alike = (one) => all(one.localName).filter((other) => identity(other) === identity(one));
let focused = null, place = 0, kept = [[], []];
document.addEventListener("htmx:before:swap", () => {
  const active = document.activeElement;
  focused = active && active.closest("#live") ? active : null;
  place = focused ? alike(focused).indexOf(focused) : 0;
  kept = states.map(([selector, name]) => all(selector).map((element) => element[name]));
});
document.addEventListener("htmx:after:swap", () => {
  states.forEach(([selector, name], at) => all(selector).forEach((element, index) => { if (index in kept[at]) element[name] = kept[at][index]; }));
  if (focused) alike(focused)[place]?.focus({ preventScroll: true });
  begin();
});
function connection(isLost) {
  if (!isLost) lastAnswer = new Date();
  const since = `Not connected since ${lastAnswer.toISOString().slice(11, 19)} UTC; what is shown is older.`;
  document.getElementById("connection").textContent = isLost ? since : "";
}
for (const [name, isLost] of [["after:request", false], ["error", true]]) document.addEventListener(`htmx:${name}`, () => connection(isLost));

// The age of each time, such as "3 min ago", behind it (console.css): it is not in the page, which would change with it.
function ages() {
  for (const time of document.querySelectorAll("time")) {
    const seconds = (Date.now() - Date.parse(`${time.textContent.slice(0, 19).replace(" ", "T")}Z`)) / 1000;
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([least]) => Math.abs(seconds) >= least) || [1, "s"];
    const age = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
    if (!isNaN(seconds)) time.dataset.age = seconds < 0 ? `in ${age}` : `${age} ago`;
  }
}
setInterval(ages, 10000);

// New records as they come: rows of HTML from the server, the newest first, at most ROWS_MAX of them.
function follow(button) {
  const status = document.getElementById("tail-status"), body = document.querySelector("table.records tbody");
  const summary = () => `${count} new record${count === 1 ? "" : "s"}.${gap && ` Others were deleted before they could be shown: ${gap}.`}`;
  let source = null, count = 0, gap = "";
  const stop = (why) => {
    if (source) source.close();
    source = null;
    button.textContent = "Follow";
    status.textContent = why;
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (source) return stop(`Stopped after ${summary()}`);
    [count, gap] = [0, ""];
    source = new EventSource(button.dataset.tail);
    button.textContent = "Stop";
    status.textContent = "Waiting for new records …";
    source.addEventListener("records", (event) => {
      body.querySelector("td.none")?.parentNode.remove();
      const before = body.childElementCount;
      body.insertAdjacentHTML("afterbegin", event.data);
      ages();
      count += body.childElementCount - before;
      while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
      status.textContent = `Following: ${summary()}`;
    });
    source.addEventListener("gap", (event) => {
      gap = event.data;
      status.textContent = `Following: ${summary()}`;
    });
    source.addEventListener("end", (event) => stop(event.data));
    source.addEventListener("error", () => stop("Not connected: the server is gone, or too many follow already. Try again."));
  });
}

// Starts the script of each element that has one, once, also when a part of the page was replaced.
function begin() {
  ages();
  for (const [selector, start] of [["[data-tail]", follow], ["[data-plot]", window.plot]]) {
    for (const element of document.querySelectorAll(`${selector}:not([data-begun])`)) if (start) { element.dataset.begun = "yes"; start(element); }
  }
}
begin();
