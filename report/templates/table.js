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
        if (column.action) return make("th", { scope: "col" }, column.label);
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
        if (this.sort.key === null || this.spec.columns[place].key !== this.sort.key) head.removeAttribute("aria-sort");
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
        if (column.action) return make("td", {}, column.action(row, this));
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

