"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement;
  const themes = read("themes");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot")];
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");

  // On a phone the legend and the words shrink with the figure.
  const fitted = (layout, width) => {
    const narrow = width < 560;
    const copy = { ...layout, template: themes[theme()], autosize: true };
    if (narrow) copy.font = { ...layout.font, size: 11 };
    return copy;
  };
  const config = { responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const draw = async (div) => {
    const figure = read("data-" + div.dataset.figure);
    const layout = fitted(figure.layout, div.clientWidth);
    await Plotly.react(div, figure.data, layout, config);
    // A legend of many lines takes its room from the plot: give it back.
    const legend = div.querySelector(".legend");
    const extra = legend ? Math.max(0, legend.getBoundingClientRect().height - 30) : 0;
    const height = layout.height + extra;
    if (height !== div.clientHeight) {
      div.style.height = height + "px";
      await Plotly.relayout(div, { height });
    }
  };
  // One after the other, so that the page can be scrolled meanwhile.
  const drawAll = async () => {
    for (const div of plots) {
      await draw(div);
      await new Promise((done) => setTimeout(done));
    }
    root.dataset.drawn = "true";
  };

  const button = document.getElementById("theme");
  const label = () => { if (button) button.textContent = theme() === "dark" ? "Light" : "Dark"; };
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      label();
      plots.forEach(draw);
    });
  }
  dark.addEventListener("change", () => { label(); plots.forEach(draw); });
  let before;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    plots.forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    plots.forEach(draw);
  });
  label();
  drawAll();
})();
