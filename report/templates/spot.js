  // A graph spot: its ONNX neighbourhood drawn beside the kernels for it, before and after.

  const BOX = { width: 124, height: 44, lane: 96, gap: 28, margin: 14, badge: 9, badges: 4, stub: 62, smallest: 0.62 };
  const quantizes = (op) => data.operations[op] === "quantize";

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const tail = (text, length) => (text.length > length ? `…${text.slice(1 - length)}` : text);

  /** The last parts of a node's path, without the operation that is written above it. */
  function shortName(name, op) {
    const parts = name.split("/").filter(Boolean);
    if (parts.length > 1 && parts.at(-1).startsWith(op)) parts.pop();
    return tail(parts.slice(-2).join("/"), 14);
  }

  const shapeText = (shape) => (shape ? shape.map((extent) => extent ?? "?").join("×") : "");

  /** The nodes and edges of a spot, as the drawing shows them; an edge without `from` comes from elsewhere. */
  function spotGraph(explanation, row) {
    const { nodes, tensors } = data.graphs[explanation.graph];
    const name = explanation.spots.name[row];
    const places = explanation.spots.places[row];
    const inside = new Map(places.map((place, local) => [place, local]));
    const drawn = places.map((place) => ({ name: nodes.name[place], op: nodes.op[place], precision: nodes.precision[place] }));
    const edges = tensors.tensor.flatMap((tensor, wire) => {
      const [dtype, narrow] = data.dtypes[tensors.dtype[wire]];
      const readers = tensors.targets[wire].map((place) => inside.get(place)).filter((place) => place !== undefined);
      const quantized = !narrow && readers.some((to) => quantizes(drawn[to].op));
      return readers.map((to) => {
        const second = quantized && !quantizes(drawn[to].op);
        const kind = second ? "second" : narrow ? "narrow" : "wide";
        return { from: inside.get(tensors.source[wire]), to, tensor, dtype: dtype || "?", kind, shape: shapeText(tensors.shape[wire]) };
      });
    });
    return { name, nodes: drawn, edges };
  }

  /** What the drawing shows, in words. */
  function spotWords({ nodes, edges }) {
    const called = (place) => (place === undefined ? "elsewhere" : `${nodes[place].op} ${nodes[place].name}`);
    const aside = (kind) => (kind === "second" ? ", a reader in high precision" : "");
    return edges.map(({ from, to, dtype, kind }) => `${called(from)} to ${called(to)} in ${dtype}${aside(kind)}`).join("; ");
  }

  function drawSpot(graph, badges) {
    const { width, height, lane, gap, margin, badge, stub } = BOX;
    const { nodes, edges } = graph;
    const inner = edges.filter(({ from }) => from !== undefined);
    const layout = layOut(nodes.map(() => height), inner.map(({ from, to }) => [from, to]), gap);
    const left = ({ column }) => margin + stub + column * (width + lane);
    const y = (node) => margin + badge + node.y;
    const size = {
      width: Math.max(...layout.nodes.map(left)) + width + margin,
      height: Math.max(...layout.nodes.map(y), ...layout.routes.flat().map(y)) + height / 2 + badge + margin,
    };
    const labelled = new Set();
    const lines = svg("g", {});
    const labels = svg("g", {});

    function line(edge, points, share) {
      const title = svg("title", {}, `${edge.tensor}\n${edge.dtype} ${edge.shape}`);
      lines.append(svg("path", { d: curve(points), class: `edge ${edge.kind}`, "marker-end": `url(#arrow-${edge.kind})` }, title));
      const fanned = edges.filter(({ from }) => from === edge.from).length > 1;
      const [one, other] = fanned && edge.from !== undefined ? points.slice(-2) : points;
      const x = one[0] + (other[0] - one[0]) * share;
      const down = bent(one[1], other[1], share);
      labels.append(svg("text", { x, y: down - 5, class: `dtype ${edge.kind}` }, edge.dtype));
      if (!labelled.has(edge.tensor)) labels.append(svg("text", { x, y: down + 13, class: "shape" }, tail(edge.shape, 14)));
      labelled.add(edge.tensor);
    }

    inner.forEach((edge, place) => {
      const [from, to] = [layout.nodes[edge.from], layout.nodes[edge.to]];
      const route = layout.routes[place].flatMap((point) => [[left(point), y(point)], [left(point) + width, y(point)]]);
      const into = inner.filter((other) => other.to === edge.to).length > 1;
      const outOf = inner.filter((other) => other.from === edge.from).length > 1;
      line(edge, [[left(from) + width, y(from)], ...route, [left(to) - 2, y(to)]], into === outOf ? 0.46 : outOf ? 0.58 : 0.42);
    });
    for (const edge of edges.filter(({ from }) => from === undefined)) {
      const to = layout.nodes[edge.to];
      const aside = inner.some((other) => other.to === edge.to) ? height / 2 + 8 : 0; // below what comes from a drawn node
      const start = [left(to) - stub, y(to) + aside];
      lines.append(svg("circle", { cx: start[0], cy: start[1], r: 4, class: "elsewhere" }, svg("title", {}, edge.tensor)));
      line(edge, [start, [left(to) - 2, y(to) + aside / 3]], aside ? 0.3 : 0.48);
    }
    const boxes = nodes.map((node, place) => drawNode(node, left(layout.nodes[place]), y(layout.nodes[place]) - height / 2, badges.get(node.name) ?? [], graph.name));
    const words = `ONNX graph around ${graph.name}: ${spotWords(graph)}`;
    const style = `min-width: ${Math.round(size.width * BOX.smallest)}px`; // smaller cannot be read: the drawing scrolls
    return svg(
      "svg",
      { style, viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "img", "aria-label": words },
      arrowHeads(),
      lines,
      ...boxes,
      labels,
    );
  }

  function arrowHeads() {
    const head = (kind) =>
      svg(
        "marker",
        { id: `arrow-${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
        svg("path", { d: "M0 0L8 4L0 8z", class: `head ${kind}` }),
      );
    return svg("defs", {}, ...["wide", "narrow", "second"].map(head));
  }

  /** Through the points, level at each of them. */
  function curve(points) {
    return points
      .map(([x, y], place) => {
        if (!place) return `M${x} ${y}`;
        const middle = (points[place - 1][0] + x) / 2;
        return `C${middle} ${points[place - 1][1]} ${middle} ${y} ${x} ${y}`;
      })
      .join("");
  }

  /** The height of such a curve at a share of its way. */
  const bent = (from, to, share) => from + (to - from) * share * share * (3 - 2 * share);

  function drawNode(node, x, y, badges, center) {
    const { width, height, badge } = BOX;
    const color = data.colors.group[data.operations[node.op]];
    const title = [node.name, node.precision && `reads ${node.precision.toUpperCase()}`].filter(Boolean).join("\n");
    const round = quantizes(node.op);
    const indent = x + (round ? 14 : 7);
    const group = svg(
      "g",
      { class: `node${node.name === center ? " center" : ""}`, "data-node": node.name },
      svg("title", {}, title),
      svg("rect", { x, y, width, height, rx: round ? height / 2 : 5, class: "box" }),
      svg("rect", { x: indent, y: y + 9, width: 5, height: height - 18, rx: 2, fill: color }),
    );
    const op = svg("text", { x: indent + 10, y: y + (round ? 27 : 19), class: "op" }, tail(node.op.replace(/Linear$/, ""), node.precision ? 8 : 12));
    if (node.precision) op.append(svg("tspan", { class: "precision", dx: 6 }, node.precision));
    group.append(op);
    if (!round) group.append(svg("text", { x: indent + 10, y: y + 35, class: "name" }, shortName(node.name, node.op)));
    for (const before of [true, false]) {
      const shown = badges.filter((kernel) => kernel.before === before).slice(0, BOX.badges);
      shown.forEach(({ label }, place) => {
        const across = before ? x + 8 + 20 * place : x + width - 4 - 20 * (shown.length - 1 - place);
        const down = before ? y + height : y;
        const kind = before ? "before" : "after";
        group.append(
          svg("circle", { cx: across, cy: down, r: badge, class: `badge ${kind}` }),
          svg("text", { x: across, y: down + 3.5, class: `badge-text ${kind}` }, label),
        );
      });
    }
    return group;
  }

  /** The kernels of one engine for a spot, in execution order, each with the nodes of the spot that it is for. */
  function kernelsOf(layers, indices, graph, before) {
    const known = new Set(graph.nodes.map((node) => node.name));
    return indices.map((index, place) => ({
      index,
      before,
      label: before ? String.fromCharCode(97 + (place % 26)) : String(place + 1),
      nodes: [...new Set([...layers.work[index], ...layers.quantizes[index], layers.finishes[index]])].filter((name) => known.has(name)),
    }));
  }

  function kernelCard(kernel, layers, light, follow) {
    const at = (column) => layers[column][kernel.index];
    const what = at("carries_quantize") ? (at("group") === "quantize" ? "only quantizes" : "quantizes too") : "";
    const link = make("button", { type: "button", className: "link", title: at("name"), onclick: () => follow(kernel) }, bdi(tail(at("name"), 60) || "(unnamed)"));
    const card = make(
      "li",
      { className: "kernel" },
      make("span", { className: `number-badge ${kernel.before ? "before" : "after"}` }, kernel.label),
      make(
        "div",
        {},
        link,
        make(
          "p",
          {},
          chip(at("group"), data.colors.group[at("group")]),
          ` ${at("read_dtypes") || "-"} → ${at("write_dtypes") || "-"}, ${readable(at("traffic_bytes"))}`,
          ...(what ? [make("b", {}, `, ${what}`)] : []),
          ...(at("finishes") ? [", finishes a conv"] : []),
        ),
      ),
    );
    for (const type of ["mouseenter", "focusin"]) card.addEventListener(type, () => light(kernel.nodes));
    for (const type of ["mouseleave", "focusout"]) card.addEventListener(type, () => light([]));
    return card;
  }

  function kernelList(title, kernels, layers, light, follow) {
    const heading = make("h3", {}, bdi(title), make("span", { className: "cost" }, ` ${plural(kernels.length, "kernel")} for these nodes`));
    const cards = kernels.map((kernel) => kernelCard(kernel, layers, light, follow));
    return make("section", {}, heading, make("ol", {}, ...(cards.length ? cards : [make("li", {}, "no kernel of its own")])));
  }

  /** The window that shows spots: one for the page. */
  const spotWindow = (() => {
    const dialog = make("dialog", { className: "spot", "aria-label": "Graph spot" });
    document.body.append(dialog);
    let rows = [];
    let place = 0;
    let number = 0;

    function turn(by) {
      place = (place + by + rows.length) % rows.length;
      show();
      dialog.querySelectorAll("header button")[by < 0 ? 0 : 1].focus(); // the one that had the focus is no more
    }

    function bar(name) {
      const button = (label, text, act) => make("button", { type: "button", title: label, "aria-label": label, onclick: act }, text);
      const steps = [
        button("Previous spot", "‹", () => turn(-1)),
        make("span", { className: "place" }, `${grouped.format(place + 1)} of ${grouped.format(rows.length)}`),
        button("Next spot", "›", () => turn(1)),
      ];
      return make("header", {}, make("h2", {}, bdi(name)), ...(rows.length > 1 ? steps : []), button("Close", "✕", () => dialog.close()));
    }

    function facts(explanation, name) {
      const { sites } = explanation;
      const row = sites.tensor.indexOf(name);
      if (row < 0) return [];
      const others = sites.high_precision_readers[row];
      const list = make("dl", { className: "facts" });
      const add = (term, ...value) => list.append(make("div", {}, make("dt", {}, term), make("dd", {}, ...value)));
      add("made by", sites.producer_kind[row]);
      add("8-bit readers", grouped.format(sites.readers[row].length));
      add("readers in high precision", others.length ? `${grouped.format(others.length)}: ` : "none", bdi(others.map((reader) => tail(reader, 70)).slice(0, 4).join(", ")));
      add("expected of full TensorRT (rules, not built)", chip(sites.prediction[row], data.colors.prediction[sites.prediction[row]]), ` ${sites.reason[row]}`);
      add("compiled here", chip(sites.verdict[row], data.colors.verdict[sites.verdict[row]]), " ", bdi(tail(sites.evidence[row], 140)));
      return [list];
    }

    function show() {
      const explanation = data.explanations[number];
      const { spots } = explanation;
      const row = rows[place];
      const graph = spotGraph(explanation, row);
      const after = data.engines[explanation.layers];
      const before = explanation.baseline_layers === null ? null : data.engines[explanation.baseline_layers];
      const now = kernelsOf(after.layers, spots.kernels[row], graph, false);
      const then = before ? kernelsOf(before.layers, spots.baseline_kernels[row], graph, true) : [];
      const badges = new Map();
      for (const kernel of [...then, ...now]) {
        for (const name of kernel.nodes) badges.set(name, [...(badges.get(name) ?? []), kernel]);
      }
      const picture = drawSpot(graph, badges);
      const light = (names) => {
        for (const node of picture.querySelectorAll("[data-node]")) node.classList.toggle("lit", names.includes(node.dataset.node));
      };
      const follow = (kernel) => {
        dialog.close();
        const engine = kernel.before ? explanation.baseline_layers : explanation.layers;
        tablesOf(number).showLayers([kernel.index], "a kernel of a graph spot", engine);
      };
      const lists = [kernelList(`After: ${after.label}`, now, after.layers, light, follow)];
      if (before) lists.unshift(kernelList(`Before: ${before.label}`, then, before.layers, light, follow));
      const omitted = spots.omitted[row] ? [make("p", { className: "caution" }, `${plural(spots.omitted[row], "reader")} more than can be drawn.`)] : [];
      dialog.replaceChildren(bar(graph.name), ...facts(explanation, graph.name), make("div", { className: "drawing", tabIndex: 0 }, picture), legend(graph, Boolean(before)), ...omitted, make("div", { className: "kernels" }, ...lists));
    }

    function legend({ edges }, before) {
      const has = (test) => edges.some(test);
      const key = (kind, text) => make("span", {}, make("i", { className: kind }), text);
      return make(
        "p",
        { className: "legend" },
        ...(has(({ kind }) => kind === "narrow") ? [key("narrow", "8 bits")] : []),
        ...(has(({ kind }) => kind === "wide") ? [key("wide", "high precision")] : []),
        ...(has(({ kind }) => kind === "second") ? [key("second", "in high precision, for a reader that needs the tensor besides its Quantize")] : []),
        ...(has(({ from }) => from === undefined) ? [key("elsewhere", "comes from elsewhere")] : []),
        ` Numbers: the kernels below that compute, finish or quantize a node${before ? "; letters: those of the baseline" : ""}.`,
      );
    }

    dialog.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step && rows.length > 1 && !event.target.closest(".drawing")) turn(step);
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

    /** Show the spots of these names, one at a time, `first` first. Names without a spot are passed over. */
    return (explanation, names, first) => {
      number = explanation;
      const known = spotRows(number);
      const drawn = names.filter((name) => known.has(name));
      if (!drawn.length) return;
      rows = drawn.map((name) => known.get(name));
      place = Math.max(0, drawn.indexOf(first));
      show();
      dialog.showModal();
    };
  })();

  const rowsOfSpots = new Map();

  /** Spots by name. */
  function spotRows(number) {
    if (!rowsOfSpots.has(number)) {
      rowsOfSpots.set(number, new Map(data.explanations[number].spots.name.map((name, row) => [name, row])));
    }
    return rowsOfSpots.get(number);
  }

