  const plural = (number, one) => `${grouped.format(number)} ${one}${number === 1 ? "" : "s"}`;
  const sum = (column, rows) => rows.reduce((total, row) => total + (column[row] ?? 0), 0);
  const count = (values) => grouped.format(values.length);
  const size = (value) => (value ? megabytes(value, 3) : "0");

  const FLAGS = { carries_quantize: "carries Quantize", pads: "pads", dequantizes: "dequantizes", partial: "partial" };

  function layerSpec(explanation) {
    const places = [explanation.layers, explanation.baseline_layers].filter((place) => place !== null);
    const timed = places.some((place) => data.engines[place].layers.time_us.some((value) => value !== null));
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
        { key: "on_chain", label: "on the longest chain" },
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
        ...(timed ? [{ key: "time_us", label: "time, µs", number: true, show: (value) => (value === null ? "-" : value.toFixed(2)) }] : []),
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

  function siteSpec(explanation, showLayers, showSpot) {
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
        {
          label: "graph",
          action: (row, table) => {
            const { tensor } = explanation.sites;
            const draw = () => showSpot(tensor[row], table.rows.map((other) => tensor[other]));
            return make("button", { type: "button", className: "draw", "aria-label": `Draw the graph around ${tensor[row]}`, onclick: draw }, "draw");
          },
        },
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

