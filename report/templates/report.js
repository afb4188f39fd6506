"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const path of data.named) for (const holder of holders(data, path.slice(0, -1))) holder[path.at(-1)] = named(holder[path.at(-1)]);

  /** Names are written once in the file, and meant by their places. */
  function named(value) {
    return Array.isArray(value) ? value.map(named) : data.names[value];
  }

  /** The objects at the end of a path, through every item of the lists on it. */
  function holders(value, path) {
    if (Array.isArray(value)) return value.flatMap((item) => holders(item, path));
    if (value === null) return [];
    return path.length ? holders(value[path[0]], path.slice(1)) : [value];
  }

  const PAGE = 100;
  const LIST = 200;
  const MB = 1e6;

  const grouped = new Intl.NumberFormat("en-US");
  const megabytes = (bytes, digits) =>
    (bytes / MB).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  /** Bytes with a unit, and no more digits than they are worth. */
  function readable(bytes) {
    const [unit, scale] = [["MB", 1e6], ["kB", 1e3]].find(([, least]) => bytes >= least) ?? ["B", 1];
    const digits = unit === "B" ? 0 : bytes / scale >= 9.995 ? 1 : 2;
    return `${(bytes / scale).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
  }

  /** An element with properties and children; text is only ever set as text. */
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(properties)) {
      if (key in element) element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  const bdi = (text) => make("bdi", {}, text);

  function chip(word, color) {
    const element = make("span", { className: "chip" }, word);
    element.style.setProperty("--chip", color ?? "transparent");
    return element;
  }

  // Figures: drawn when they come into view, drawn anew when the theme changes.

  const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]] };
  const drawn = new Set();

  function template() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const title = { font: { size: 13, color: color("--soft") } };
    const axis = { title, gridcolor: color("--grid"), zerolinecolor: color("--line"), linecolor: color("--line"), automargin: true };
    return {
      layout: {
        font: { color: color("--ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--ink") },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        hoverlabel: { font: { family: getComputedStyle(document.body).fontFamily } },
        xaxis: axis,
        yaxis: axis,
      },
    };
  }

  function draw(element) {
    const figure = data.figures[element.dataset.figure];
    Plotly.react(element, figure.data, { ...figure.layout, template: template() }, CONFIG);
    if (!drawn.has(element)) element.on?.("plotly_click", ({ points }) => follow(element, points[0]));
    drawn.add(element);
  }

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "300px" },
  );

  // Plotly is by far the largest part of the page: it starts when everything else has been shown and can be used.
  // Its figures have their room before it starts, so that nothing moves away from under a hand.
  document.querySelectorAll("[data-figure]").forEach((element) => {
    element.style.minHeight = `${data.figures[element.dataset.figure].layout.height}px`;
  });

  function startPlotly() {
    document.body.append(make("script", {}, document.getElementById("plotly").textContent));
    document.querySelectorAll("[data-figure]").forEach((element) => watcher.observe(element));
  }

  addEventListener("load", () => requestAnimationFrame(() => setTimeout(startPlotly)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));

{% include "table.js" %}
{% include "specs.js" %}
{% include "layout.js" %}
{% include "spot.js" %}
  const tables = new Map();

  /** The tables of an explanation are made when it is first shown. */
  function tablesOf(number) {
    if (!tables.has(number)) {
      const explanation = data.explanations[number];
      const host = (kind) => document.querySelector(`[data-table="${kind}"][data-explanation="${number}"]`);
      const layers = new Table(host("layers"), layerSpec(explanation));
      const showLayers = (indices, why, engine = explanation.layers) => {
        layers.use(data.engines[engine].layers);
        layers.focus(indices, why);
      };
      const showSpot = (name, names) => spotWindow(number, names, name);
      if (host("sites")) new Table(host("sites"), siteSpec(explanation, showLayers, showSpot));
      tables.set(number, { showLayers });
    }
    return tables.get(number);
  }

  // Findings: their evidence is listed when asked for.

  document.querySelectorAll("details.finding").forEach((element) =>
    element.addEventListener("toggle", () => {
      const list = element.querySelector(".nodes");
      if (!list || list.childElementCount) return;
      const number = Number(element.dataset.explanation);
      const { nodes } = data.explanations[number].findings[Number(element.dataset.finding)];
      const item = (name) => {
        const draw = () => spotWindow(number, nodes, name);
        return make("li", {}, spotRows(number).has(name) ? make("button", { type: "button", className: "link", title: "Draw it", onclick: draw }, bdi(name)) : bdi(name));
      };
      list.append(...nodes.slice(0, LIST).map(item));
      if (nodes.length > LIST) {
        const rest = nodes.slice(LIST);
        const more = make("button", { type: "button", className: "link" }, `show ${count(rest)} more`);
        const last = make("li", {}, more);
        more.addEventListener("click", () => last.replaceWith(...rest.map(item)));
        list.append(last);
      }
    }),
  );

  document.querySelectorAll("[data-show-layers]").forEach((button) =>
    button.addEventListener("click", () => {
      const number = Number(button.dataset.explanation);
      const finding = data.explanations[number].findings[Number(button.dataset.finding)];
      tablesOf(number).showLayers(finding.layers, finding.title);
    }),
  );

  document.querySelectorAll("[data-show-spots]").forEach((button) => {
    const number = Number(button.dataset.explanation);
    const { nodes } = data.explanations[number].findings[Number(button.dataset.finding)];
    button.hidden = !nodes.some((name) => spotRows(number).has(name));
    button.addEventListener("click", () => spotWindow(number, nodes));
  });

  /** A click on a kernel or a block of a figure leads to its rows in the layer table. */
  function follow(element, point) {
    const [, figure, number] = element.dataset.figure.match(/^(\w+)-(\d+)$/) ?? [];
    const explanation = data.explanations[Number(number)];
    if (figure === "streams" && point.customdata !== null) {
      const engine = point.data.meta === "baseline" ? explanation.baseline_layers : explanation.layers;
      tablesOf(Number(number)).showLayers([point.customdata], "a kernel of the streams", engine);
    }
    if (figure === "blocks" && point.customdata !== undefined) {
      const { kernels, quantize_kernels } = explanation.blocks;
      const shown = [...quantize_kernels[point.customdata], ...kernels[point.customdata]];
      tablesOf(Number(number)).showLayers(shown, "a block and the kernels that quantize for it");
    }
  }

  // Tabs, by the keyboard too; the address remembers which.

  const tabs = [...document.querySelectorAll('[role="tab"]')];

  function show(number) {
    tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", String(place === number));
      tab.tabIndex = place === number ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = place !== number;
    });
    if (data.explanations.length) tablesOf(number);
  }

  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => {
      show(place);
      history.replaceState(null, "", `#engine-${place}`);
    });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const other = (place + step + tabs.length) % tabs.length;
      tabs[other].focus();
      tabs[other].click();
    });
  });

  const asked = Number(location.hash.match(/^#engine-(\d+)$/)?.[1] ?? 0);
  show(asked < data.explanations.length ? asked : 0);
})();
