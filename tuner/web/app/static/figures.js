// Draws a study's figures with Plotly when they come into view, and again when the study changes.
"use strict";

(() => {
  const script = document.getElementById("figures-script");
  const holder = document.querySelector(".figures");
  if (!script || !holder) return;
  const changes = new Map(); // figure -> the study's state that it shows
  const drawn = new Map(); // figure -> what the server sent
  const visible = new Set();
  let current = holder.dataset.change;
  let plotly = null;

  // Plotly writes style attributes, which the page's policy forbids; the same through the object
  // model is allowed, because no text of a page can get there
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function setStyleAsObject(name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };

  const loadPlotly = () => {
    plotly ??= new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = script.dataset.plotly;
      element.onload = () => resolve(window.Plotly);
      element.onerror = () => reject(new Error("Plotly did not load"));
      document.head.append(element);
    });
    return plotly;
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const themed = (layout) => {
    const axis = { gridcolor: colour("--line"), linecolor: colour("--muted"), zerolinecolor: colour("--line"),
      tickcolor: colour("--muted"), automargin: true };
    const template = { layout: {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      colorway: ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"],
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--muted"), font: { color: colour("--ink") } },
      annotationdefaults: { font: { color: colour("--ink") }, arrowcolor: colour("--muted") },
      legend: { bgcolor: "rgba(0,0,0,0)" },
    } };
    return { ...layout, template, autosize: true };
  };

  const draw = async (figure) => {
    const found = drawn.get(figure);
    const canvas = figure.querySelector(".canvas");
    const caption = figure.querySelector("figcaption");
    if (found.missing) {
      if (window.Plotly) window.Plotly.purge(canvas);
      canvas.classList.add("none");
      const words = document.createElement("p");
      words.className = "empty";
      words.textContent = found.missing;
      canvas.replaceChildren(words);
      caption.textContent = "";
      return;
    }
    const Plotly = await loadPlotly();
    canvas.classList.remove("none");
    if (!canvas.querySelector(".plotly-target")) {
      const target = document.createElement("div");
      target.className = "plotly-target";
      canvas.replaceChildren(target);
    }
    const target = canvas.querySelector(".plotly-target");
    const width = found.layout.meta?.min_width;
    target.style.minWidth = width ? `${width}px` : "";
    const config = { displaylogo: false, responsive: true, displayModeBar: false };
    await Plotly.react(target, structuredClone(found.data), themed(structuredClone(found.layout)), config);
    caption.textContent = found.caption;
    figure.dataset.drawn = "yes";
  };

  const fetchFigure = async (figure) => {
    if (changes.get(figure) === current) return;
    changes.set(figure, current);
    figure.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(figure.dataset.figure, { credentials: "same-origin", cache: "no-cache" });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      drawn.set(figure, await answer.json());
      await draw(figure);
    } catch (error) {
      changes.delete(figure);
      if (!drawn.has(figure)) {
        const words = document.createElement("p");
        words.className = "problem";
        words.textContent = `This figure could not be drawn: ${error.message}.`;
        figure.querySelector(".canvas").replaceChildren(words);
      }
    } finally {
      figure.removeAttribute("aria-busy");
    }
  };

  // one after another: the figures of a study share what is read for the first of them
  let queue = Promise.resolve();
  const enqueue = (figure) => { queue = queue.then(() => fetchFigure(figure)); };

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        visible.add(entry.target);
        enqueue(entry.target);
      } else {
        visible.delete(entry.target);
      }
    }
  }, { rootMargin: "300px" });
  for (const figure of holder.querySelectorAll(".plot")) observer.observe(figure);

  let timer = null;
  document.addEventListener("tuner:change", (event) => {
    current = event.detail;
    // a fast study changes every few seconds; its figures need not
    timer ??= window.setTimeout(() => {
      timer = null;
      for (const figure of visible) enqueue(figure);
    }, 5000);
  });

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const figure of drawn.keys()) draw(figure);
  });
  window.addEventListener("beforeprint", () => {
    for (const figure of holder.querySelectorAll(".plot")) enqueue(figure);
  });
})();
