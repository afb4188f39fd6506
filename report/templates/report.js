"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 100;
  const LIST = 200;
  const MB = 1e6;

  const grouped = new Intl.NumberFormat("en-US");
  const megabytes = (bytes, digits) =>
    (bytes / MB).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

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
  document.querySelectorAll("[data-figure]").forEach((element) => watcher.observe(element));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));

  // Tables: columns of data, a list of rows that pass the filters, and one page of them in the document.

  class Table {
    constructor(host, spec) {
      this.host = host;
      this.spec = spec;
      this.sort = { key: null, down: false };
      this.page = 0;
      this.text = "";
      this.chosen = new Map();
      this.only = null;
      this.open = new Set();
      this.body = make("tbody");
      this.total = make("p", { className: "total", role: "status" });
      this.label = make("span");
      this.back = make("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
      this.next = make("button", { type: "button", onclick: () => this.turn(1) }, "Next");
      this.pages = make("nav", { className: "pages", "aria-label": `Pages of ${spec.what}` }, this.back, this.label, this.next);
      this.use(spec.source());
    }

    /** Show other data in the same columns. */
    use(source) {
      this.source = source;
      this.size = (Object.values(source)[0] ?? []).length;
      this.haystack = null;
      this.only = null;
      this.chosen.clear();
      this.open.clear();
      this.host.replaceChildren(this.filters(), this.total, make("div", { className: "scroll tall", tabIndex: 0 }, this.frame()), this.pages);
      this.update();
    }

    frame() {
      this.heads = this.spec.columns.map((column) => {
        const button = make("button", { type: "button", title: data.help[this.spec.kind][column.key] ?? "" }, column.label);
        const cell = make("th", { scope: "col", className: column.number ? "number" : "" }, button);
        button.addEventListener("click", () => this.sortBy(column));
        return cell;
      });
      return make("table", { className: "rows" }, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
    }

    filters() {
      const search = make("input", { type: "search", placeholder: this.spec.search, value: this.text });
      search.addEventListener("input", () => this.narrow(() => (this.text = search.value)));
      const bar = make("div", { className: "bar" }, ...(this.spec.before?.(this) ?? []), make("label", {}, "search", search));
      for (const filter of this.spec.filters) bar.append(this.choice(filter));
      for (const flag of this.spec.flags ?? []) bar.append(this.check(flag));
      this.all = make("button", { type: "button", hidden: true, onclick: () => this.narrow(() => (this.only = null)) });
      bar.append(this.all);
      return bar;
    }

    choice({ key, label }) {
      const counts = new Map();
      for (const value of this.source[key]) counts.set(value, (counts.get(value) ?? 0) + 1);
      const options = [...counts].sort((one, other) => other[1] - one[1]);
      const select = make("select", {}, make("option", { value: "" }, "all"));
      options.forEach(([value, count], place) =>
        select.append(make("option", { value: String(place) }, `${value === "" ? "(none)" : value} (${grouped.format(count)})`)),
      );
      select.addEventListener("change", () =>
        this.narrow(() => {
          if (select.value === "") this.chosen.delete(key);
          else this.chosen.set(key, options[Number(select.value)][0]);
        }),
      );
      return make("label", {}, label, select);
    }

    check({ key, label }) {
      const box = make("input", { type: "checkbox" });
      box.addEventListener("change", () =>
        this.narrow(() => (box.checked ? this.chosen.set(key, true) : this.chosen.delete(key))),
      );
      return make("label", { className: "check" }, box, label);
    }

    narrow(change) {
      change();
      this.page = 0;
      this.update();
    }

    /** Show only these rows, and say why; the button that says so takes it back. */
    focus(rows, why) {
      this.text = "";
      this.use(this.source);
      this.narrow(() => (this.only = new Set(rows)));
      this.all.textContent = `${why} ✕`;
      this.all.title = "Show all rows again";
      this.host.scrollIntoView({ block: "start" });
      this.all.focus({ preventScroll: true });
    }

    sortBy(column) {
      const down = this.sort.key === column.key ? !this.sort.down : Boolean(column.number) && column.key !== "index";
      this.narrow(() => (this.sort = { key: column.key, down }));
    }

    turn(by) {
      this.page += by;
      this.update();
      this.host.scrollIntoView({ block: "start" });
    }

    passing() {
      const wanted = this.text.trim().toLowerCase();
      if (wanted && !this.haystack) {
        this.haystack = Array.from({ length: this.size }, (_, row) =>
          this.spec.searched.map((key) => [this.source[key][row]].flat().join("\n")).join("\n").toLowerCase(),
        );
      }
      const rows = [];
      for (let row = 0; row < this.size; row++) {
        if (this.only && !this.only.has(row)) continue;
        if (wanted && !this.haystack[row].includes(wanted)) continue;
        if ([...this.chosen].some(([key, value]) => this.source[key][row] !== value)) continue;
        rows.push(row);
      }
      return rows;
    }

    ordered(rows) {
      const { key, down } = this.sort;
      if (key === null) return rows;
      const rank = (value) => (Array.isArray(value) ? value.length : value);
      const values = this.source[key].map(rank);
      const compare = (one, other) => {
        if (values[one] === null || values[other] === null) return (values[one] === null) - (values[other] === null);
        const order = values[one] < values[other] ? -1 : values[one] > values[other] ? 1 : 0;
        return down ? -order : order;
      };
      return rows.sort(compare);
    }

    update() {
      this.rows = this.ordered(this.passing());
      const last = Math.max(0, Math.ceil(this.rows.length / PAGE) - 1);
      this.page = Math.min(this.page, last);
      const start = this.page * PAGE;
      const shown = this.rows.slice(start, start + PAGE);
      this.body.replaceChildren(...shown.flatMap((row) => this.line(row)));
      if (!shown.length) this.body.append(make("tr", {}, make("td", { colSpan: this.spec.columns.length }, "no row passes the filters")));
      this.heads.forEach((head, place) => {
        if (this.spec.columns[place].key !== this.sort.key) head.removeAttribute("aria-sort");
        else head.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      });
      this.total.textContent = this.spec.total(this.rows, this.source, this.size);
      this.label.textContent = `${grouped.format(start + 1)} to ${grouped.format(start + shown.length)} of ${grouped.format(this.rows.length)}`;
      this.back.disabled = this.page === 0;
      this.next.disabled = this.page === last;
      this.pages.hidden = this.rows.length <= PAGE;
      this.all.hidden = this.only === null;
    }

    line(row) {
      const cells = this.spec.columns.map((column) => {
        const value = this.source[column.key][row];
        const cell = make("td", { className: column.number ? "number" : column.name ? "name" : "" });
        if (column.name) cell.append(this.opener(row, value));
        else cell.append(column.show ? column.show(value, row, this.source) : bdi(value === null ? "-" : String(value)));
        return cell;
      });
      const line = make("tr", {}, ...cells);
      return this.open.has(row) ? [line, this.detail(row)] : [line];
    }

    opener(row, name) {
      const short = name.length > 160 ? `${name.slice(0, 100)}…${name.slice(-50)}` : name;
      const button = make("button", { type: "button", className: "link" }, bdi(short || "(unnamed)"));
      button.setAttribute("aria-expanded", String(this.open.has(row)));
      button.addEventListener("click", () => {
        const line = button.closest("tr");
        if (this.open.delete(row)) line.nextElementSibling.remove();
        else {
          this.open.add(row);
          line.after(this.detail(row));
        }
        button.setAttribute("aria-expanded", String(this.open.has(row)));
      });
      return button;
    }

    detail(row) {
      const list = make("dl");
      for (const [key, help] of Object.entries(data.help[this.spec.kind])) {
        const value = this.source[key][row];
        if (value === null || value === "" || value === false || value.length === 0) continue;
        const shown = this.spec.details?.[key]?.(value) ?? bdi(words(value));
        list.append(make("dt", { title: help }, key.replaceAll("_", " ")), make("dd", {}, shown));
      }
      return make("tr", { className: "detail" }, make("td", { colSpan: this.spec.columns.length }, list));
    }
  }

  function words(value) {
    if (value === true) return "yes";
    if (typeof value === "number") return grouped.format(value);
    return Array.isArray(value) ? value.map((item) => (typeof item === "number" ? String(item) : item)).join(", ") : value;
  }

  const plural = (number, one) => `${grouped.format(number)} ${one}${number === 1 ? "" : "s"}`;
  const sum = (column, rows) => rows.reduce((total, row) => total + (column[row] ?? 0), 0);
  const count = (values) => grouped.format(values.length);
  const size = (value) => (value ? megabytes(value, 3) : "0");

  const FLAGS = { carries_quantize: "carries Quantize", pads: "pads", dequantizes: "dequantizes", partial: "partial" };

  function layerSpec(explanation) {
    const places = [explanation.layers, explanation.baseline_layers].filter((place) => place !== null);
    return {
      kind: "layers",
      what: "layers",
      source: () => data.engines[explanation.layers].layers,
      search: "name or ONNX node",
      searched: ["name", "onnx_nodes"],
      before: (table) => {
        if (places.length < 2) return [];
        const select = make("select", {});
        for (const place of places) {
          const { label, layers } = data.engines[place];
          select.append(make("option", { value: String(place), selected: layers === table.source }, label));
        }
        select.addEventListener("change", () => table.use(data.engines[Number(select.value)].layers));
        return [make("label", {}, "engine", select)];
      },
      filters: [
        { key: "group", label: "group" },
        { key: "read_dtypes", label: "reads" },
        { key: "write_dtypes", label: "writes" },
      ],
      flags: [
        { key: "kernel", label: "kernels only" },
        { key: "carries_quantize", label: "carries a Quantize" },
        { key: "pads", label: "pads" },
      ],
      columns: [
        { key: "index", label: "#", number: true },
        { key: "name", label: "layer", name: true },
        { key: "group", label: "group", show: (value) => chip(value, data.colors.group[value]) },
        { key: "kind", label: "kind" },
        { key: "stream", label: "stream", number: true },
        { key: "read_dtypes", label: "reads" },
        { key: "write_dtypes", label: "writes" },
        { key: "shape", label: "shape", show: (value) => value.join("×") || "-" },
        { key: "traffic_bytes", label: "traffic, MB", number: true, show: size },
        { key: "quantize_bytes", label: "for Quantize, MB", number: true, show: size },
        {
          key: "carries_quantize",
          label: "flags",
          show: (_, row, source) => Object.keys(FLAGS).filter((key) => source[key][row]).map((key) => FLAGS[key]).join(", "),
        },
      ],
      total: (rows, source, all) =>
        `${count(rows)} of ${plural(all, "layer")}: ${plural(sum(source.kernel, rows), "kernel")}, ` +
        `${megabytes(sum(source.traffic_bytes, rows), 1)} MB of traffic`,
    };
  }

  function siteSpec(explanation, showLayers) {
    return {
      kind: "sites",
      what: "sites",
      source: () => explanation.sites,
      search: "tensor, producer or reader",
      searched: ["tensor", "producer", "readers", "high_precision_readers"],
      filters: [
        { key: "verdict", label: "compiled" },
        { key: "prediction", label: "expected" },
        { key: "reason", label: "reason" },
      ],
      columns: [
        { key: "tensor", label: "tensor", name: true },
        { key: "format", label: "format" },
        { key: "producer_kind", label: "made by" },
        { key: "readers", label: "8-bit readers", number: true, show: count },
        { key: "high_precision_readers", label: "other readers", number: true, show: count },
        { key: "prediction", label: "expected of full TensorRT", show: (value) => chip(value, data.colors.prediction[value]) },
        { key: "verdict", label: "compiled here", show: (value) => chip(value, data.colors.verdict[value]) },
        { key: "reason", label: "reason" },
      ],
      details: {
        kernels: (indices) =>
          make("button", { type: "button", className: "link", onclick: () => showLayers(indices, "layers of this site") }, `show ${words(indices)}`),
      },
      total: (rows, source, all) => `${count(rows)} of ${plural(all, "site")}`,
    };
  }

  const tables = new Map();

  /** The tables of an explanation are made when it is first shown. */
  function tablesOf(number) {
    if (!tables.has(number)) {
      const explanation = data.explanations[number];
      const host = (kind) => document.querySelector(`[data-table="${kind}"][data-explanation="${number}"]`);
      const layers = new Table(host("layers"), layerSpec(explanation));
      const showLayers = (indices, why) => {
        layers.use(data.engines[explanation.layers].layers);
        layers.focus(indices, why);
      };
      if (host("sites")) new Table(host("sites"), siteSpec(explanation, showLayers));
      tables.set(number, { showLayers });
    }
    return tables.get(number);
  }

  // Findings: their evidence is listed when asked for.

  document.querySelectorAll("details.finding").forEach((element) =>
    element.addEventListener("toggle", () => {
      const list = element.querySelector(".nodes");
      if (!list || list.childElementCount) return;
      const { nodes } = data.explanations[Number(element.dataset.explanation)].findings[Number(element.dataset.finding)];
      const item = (name) => make("li", {}, bdi(name));
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
