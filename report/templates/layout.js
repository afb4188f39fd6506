  // Where the nodes of a small graph stand: columns from left to right along the data, no two in one place.

  const ROUNDS = 12;

  /**
   * Lay out a directed acyclic graph.
   *
   * `heights` has the height of each node, `edges` are pairs of places in it. Returns, for each node, its column and
   * the middle of its height, and for each edge the points between that lead it around the nodes of other columns.
   */
  function layOut(heights, edges, gap) {
    const columns = columnsOf(heights.length, edges);
    const nodes = heights.map((height, place) => ({ height, column: columns[place], y: 0, near: [] }));
    const chains = edges.map(([from, to]) => {
      const chain = [nodes[from]];
      for (let column = columns[from] + 1; column < columns[to]; column++) chain.push({ height: 8, column, y: 0, near: [] });
      chain.push(nodes[to]);
      chain.forEach((node, place) => {
        if (place) {
          node.near.push(chain[place - 1]);
          chain[place - 1].near.push(node);
        }
      });
      return chain;
    });
    const stacks = [];
    for (const node of new Set([...nodes, ...chains.flat()])) (stacks[node.column] ??= []).push(node);
    stacks.forEach((stack) => stack.forEach((node, place) => (node.y = place * (node.height + gap))));
    for (let round = 0; round < ROUNDS; round++) {
      const order = round % 2 ? [...stacks].reverse() : stacks;
      for (const stack of order) settle(stack, gap);
    }
    const top = Math.min(...stacks.flat().map((node) => node.y - node.height / 2));
    for (const node of stacks.flat()) node.y -= top;
    return { nodes, routes: chains.map((chain) => chain.slice(1, -1)) };
  }

  /** The column of each node: right of all that it reads, and as near as can be to what reads it. */
  function columnsOf(size, edges) {
    const columns = Array(size).fill(0);
    for (let pass = 0, moved = true; moved && pass <= size; pass++) {
      moved = false;
      for (const [from, to] of edges) {
        if (columns[to] <= columns[from]) {
          columns[to] = columns[from] + 1;
          moved = true;
        }
      }
    }
    for (let place = 0; place < size; place++) {
      const read = edges.some(([, to]) => to === place);
      const readers = edges.filter(([from]) => from === place).map(([, to]) => columns[to]);
      if (!read && readers.length) columns[place] = Math.min(...readers) - 1;
    }
    const first = Math.min(0, ...columns);
    return columns.map((column) => column - first);
  }

  /** Bring the nodes of a column near to what they are joined to, in that order, without overlap. */
  function settle(stack, gap) {
    const wish = new Map(
      stack.map((node) => [node, node.near.length ? node.near.reduce((sum, other) => sum + other.y, 0) / node.near.length : node.y]),
    );
    stack.sort((one, other) => wish.get(one) - wish.get(other));
    let above = -Infinity;
    for (const node of stack) {
      node.y = Math.max(wish.get(node), above + node.height / 2);
      above = node.y + node.height / 2 + gap;
    }
    const shift = stack.reduce((sum, node) => sum + wish.get(node) - node.y, 0) / stack.length;
    for (const node of stack) node.y += shift;
  }

