'use strict';
(() => {
  const el = (id) => document.getElementById(id);
  let data = JSON.parse(el('data').textContent);
  window.report = { ready: false, opened: performance.now() };

  // ---- figures, drawn when they come into view
  const draw = (div) => {
    const { figure } = data.figures[div.dataset.key][+div.dataset.i];
    Plotly.react(div, figure.data, themed(figure.layout), { responsive: true, displaylogo: false, displayModeBar: false });
  };
  // In the colours of the page, light or dark.
  const themed = (layout) => {
    const color = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
    const axis = { gridcolor: color('--line'), zerolinecolor: color('--line') };
    return {
      ...layout, uirevision: 'kept', font: { color: color('--ink') }, paper_bgcolor: color('--card'), plot_bgcolor: color('--card'),
      xaxis: { ...layout.xaxis, ...axis }, yaxis: { ...layout.yaxis, ...axis },
      hoverlabel: { bgcolor: color('--card'), font: { color: color('--ink') } },
    };
  };
  const drawn = () => document.querySelectorAll('.figure.js-plotly-plot');
  matchMedia('(prefers-color-scheme: dark)').onchange = () => drawn().forEach(draw);
  const seen = new IntersectionObserver((entries) => {
    for (const e of entries) if (e.isIntersecting) { seen.unobserve(e.target); draw(e.target); }
  }, { rootMargin: '300px' });
  const watch = (root) => root.querySelectorAll('.figure').forEach((div) => seen.observe(div));
  watch(document);

  // ---- blocks: base64 of gzip of JSON, opened once
  const opened = new Map();
  const unpack = async (text) => {
    const raw = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text)
      : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('gzip'));
    return JSON.parse(await new Response(stream).text());
  };
  const whole = new Promise((done) => document.addEventListener('DOMContentLoaded', done));
  const found = async (id) => {
    if (data.version !== null) return (await fetch(id)).text(); // a live page
    if (!el(id)) await whole; // the file is still being read
    return el(id).textContent;
  };
  const block = (id) => {
    if (!opened.has(id)) opened.set(id, found(id).then(unpack));
    return opened.get(id);
  };
  const textsOf = async (i) => (await block(`texts-${Math.floor(i / data.textRows)}`))[i % data.textRows];
  const tokensOf = async (i) => (await block(`tokens-${Math.floor(i / data.tokenRows)}`))[i % data.tokenRows];

  // ---- the list of answers
  const HEIGHT = 26;
  const list = el('list'), spacer = el('spacer'), detail = el('detail');
  const state = { items: [], chosen: -1, drawn: 0 };
  let cols = null;

  const node = (tag, cls, text) => {
    const n = document.createElement(tag);
    if (cls) n.className = cls;
    if (text !== undefined) n.textContent = text;
    return n;
  };
  const failed = (i) => cols.status[i] === 'error' || cols.status[i] === 'timeout';
  const mark = (i) => failed(i) ? node('span', 'mark f', '?')
    : cols.right[i] ? node('span', 'mark r', '✓') : node('span', 'mark w', '✗');
  const name = (i) => (data.names.length > 1 ? `${data.names[cols.run[i]]} ` : '') + (cols.step[i] === null ? '' : `step ${cols.step[i]}`);
  const number = (x) => x === null || x === undefined ? '' : (+x.toPrecision(4)).toString();

  const fill = (row, item) => {
    if (item.pair || item.head !== undefined) {
      row.classList.toggle('head', !item.pair);
      const text = node('span', 'text', '…'), said = item.pair?.map((side) => `${rights(side)}/${side.length}`).join(' : ');
      row.append(node('span', '', said ?? `${name(item.head)}, ${item.right} of ${item.n} right`), text);
      textsOf(item.head ?? item.row).then((t) => { text.textContent = t.prompt.slice(0, 300); });
      return;
    }
    const i = item.row, text = node('span', 'text', '…');
    row.append(mark(i), node('span', 'what', name(i)), text);
    textsOf(i).then((t) => { text.textContent = `${t.prompt} ▸ ${t.completion}`.slice(0, 300); });
  };
  const show = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - 5);
    const last = Math.min(state.items.length, first + Math.ceil(list.clientHeight / HEIGHT) + 10);
    list.querySelectorAll('.row').forEach((n) => n.remove());
    for (let k = first; k < last; k++) {
      const item = state.items[k], row = node('div', 'row');
      row.style.top = `${k * HEIGHT}px`;
      if (item.row !== undefined && item.row === state.chosen) row.classList.add('chosen');
      fill(row, item);
      row.onclick = () => item.head !== undefined ? only(item.head) : open(item);
      list.append(row);
    }
    state.drawn = last - first;
  };
  // The answers to the problem of an answer; null: to all problems.
  let problem = null;
  const only = async (i) => {
    problem = i;
    const chip = el('f-problem');
    chip.hidden = i === null;
    if (i !== null) chip.textContent = `✕ ${(await textsOf(i)).prompt.slice(0, 80)}`;
    await filter();
  };

  let turn = 0;
  const filter = async (event, top = 0) => {
    const mine = ++turn;
    const [words, asked] = ['search', 'f-prompt'].map((id) => el(id).value.trim().toLowerCase());
    const other = el('f-other').value, right = el('f-right').value, more = el('f-more').value;
    if (other !== '' && el('f-run').value === '') el('f-run').value = +(other === '0');
    const run = el('f-run').value, within = ranges();
    let rows = [];
    for (let i = 0; i < data.rows; i++) {
      if (run !== '' && cols.run[i] !== +run && (other === '' || cols.run[i] !== +other)) continue;
      if (!within(i)) continue;
      if (right !== '' && cols.right[i] !== +right) continue;
      if (problem !== null && cols.problem[i] !== cols.problem[problem]) continue;
      if (more === 'truncated' && !cols.truncated[i]) continue;
      if (more === 'failed' && !failed(i)) continue;
      if (more === 'signal' && !cols.advantage[i]) continue;
      rows.push(i);
    }
    if (words || asked) {
      const kept = [];
      let told = performance.now();
      for (const i of rows) {
        const t = await textsOf(i);
        if (mine !== turn) return;
        if (!t.prompt.toLowerCase().includes(asked)) continue;
        if (`${t.prompt}\n${t.completion}\n${t.extracted ?? ''}`.toLowerCase().includes(words)) kept.push(i);
        if (performance.now() - told > 200) { told = performance.now(); el('count').textContent = `searching … ${kept.length}`; }
      }
      rows = kept;
    }
    state.items = other !== '' ? paired(rows, [+run, +other])
      : el('group').checked ? grouped(rows) : rows.map((row) => ({ row }));
    el('count').textContent = other !== '' ? `${state.items.length} problems in both runs` : `${rows.length} of ${data.rows} answers`;
    list.parentNode.classList.toggle('pairs', other !== '');
    spacer.style.height = `${state.items.length * HEIGHT}px`;
    list.scrollTop = top;
    show();
    report.shown = rows.length;
    if (event && state.items[0]?.pair) compare(state.items[0]);
  };
  // Whether the numbers of an answer are in the ranges; empty ends are open.
  const RANGES = ['step', 'reward', 'length'];
  const ranges = () => {
    const set = RANGES.map((name) => [cols[name], el(`${name}-from`).value, el(`${name}-to`).value])
      .filter(([, from, to]) => from !== '' || to !== '');
    return (i) => set.every(([column, from, to]) => column[i] !== null
      && (from === '' || column[i] >= +from) && (to === '' || column[i] <= +to));
  };
  const rights = (rows) => rows.reduce((n, i) => n + cols.right[i], 0);
  // The problems that two runs have in common, with the answers of each run.
  // Those whose shares of right answers differ most come first.
  const paired = (rows, runs) => {
    const problems = new Map();
    for (const row of rows) {
      const key = cols.problem[row];
      if (!problems.has(key)) problems.set(key, { row, pair: [[], []] });
      problems.get(key).pair[runs.indexOf(cols.run[row])].push(row);
    }
    const out = [...problems.values()].filter(({ pair }) => pair[0].length && pair[1].length);
    const share = (side) => rights(side) / side.length;
    for (const item of out) item.gap = Math.abs(share(item.pair[0]) - share(item.pair[1]));
    return out.sort((a, b) => b.gap - a.gap);
  };
  const grouped = (rows) => {
    const key = (i) => [cols.problem[i], cols.run[i], cols.step[i], cols.sample[i]];
    const sorted = [...rows].sort((a, b) => {
      const x = key(a), y = key(b);
      for (let k = 0; k < 4; k++) if (x[k] !== y[k]) return x[k] - y[k];
      return a - b;
    });
    const out = [];
    let head = null;
    for (const i of sorted) {
      const same = head && cols.problem[head.head] === cols.problem[i]
        && cols.run[head.head] === cols.run[i] && cols.step[head.head] === cols.step[i];
      if (!same) { head = { head: i, n: 0, right: 0 }; out.push(head); }
      head.n++; head.right += cols.right[i];
      out.push({ row: i });
    }
    return out;
  };

  // ---- one answer, its tokens coloured
  const HOW = {
    advantage: { what: 'advantage', zero: 0 },
    entropy: { what: 'entropy, nats', low: 0 },
    logp: { what: 'log-probability', high: 0 },
    ratio: { what: 'trainer over sampler', zero: 1 },
    kl: { what: 'log-probability over the reference', zero: 0 },
    turn: { what: 'turn' },
  };
  let by = 'advantage', strongest = 0;
  const values = (t, i) => {
    const n = (t.text ?? []).length;
    if (by === 'advantage') return t.advantage ?? Array(n).fill(cols.advantage[i]);
    if (by === 'kl') return t.ref_logp?.map((r, k) => t.logp[k] - r);
    if (by === 'turn') return t.turn ?? Array(n).fill(0);
    return t[by];
  };
  const TURNS = [212, 141, 43, 330, 263, 187].map((hue) => `hsl(${hue} 80% 50% / 0.25)`);
  const color = (x, low, high) => {
    if (x === null || x === undefined) return '';
    if (by === 'turn') return TURNS[x % TURNS.length];
    const how = HOW[by];
    if (how.zero !== undefined) {
      const most = Math.max(Math.abs(low - how.zero), Math.abs(high - how.zero)) || 1;
      const s = (x - how.zero) / most;
      return s > 0 ? `rgba(5,150,105,${0.7 * s})` : `rgba(220,38,38,${-0.7 * s})`;
    }
    const s = high > low ? (x - low) / (high - low) : 0;
    return `rgba(217,119,6,${0.8 * (by === 'logp' ? 1 - s : s)})`;
  };
  const turnBox = (role, text = '') => {
    const box = node('div', 'turn', text);
    box.dataset.role = role;
    return box;
  };
  const paint = (box, t, i) => {
    box.replaceChildren();
    let part = null, last = null;
    const xs = values(t, i), known = (xs ?? []).filter((x) => x !== null);
    // Advantages on one scale for all answers: a pale one is a small one.
    const seen = by === 'advantage' ? [...known, -strongest, strongest] : known;
    const low = HOW[by].low ?? Math.min(...seen), high = HOW[by].high ?? Math.max(...seen);
    t.text.forEach((text, k) => {
      const own = t.sampled?.[k] ?? true, at = t.turn?.[k] ?? 0;
      if (last !== `${at} ${own}`) {
        last = `${at} ${own}`;
        part = turnBox(own ? 'policy' : at < 0 ? 'hint' : 'environment');
        box.append(part);
      }
      const span = node('span', '', text === '' ? '∎' : text);
      if (!own) span.classList.add('env');
      else if (t.trained && !t.trained[k]) span.classList.add('left');
      if (xs && own) span.style.background = color(xs[k], low, high);
      span.title = Object.keys(HOW).filter((h) => t[h]).map((h) => `${h} ${number(t[h][k])}`).join('\n')
        + (t.advantage ? '' : `\nadvantage ${number(cols.advantage[i])}`)
        + (own ? '' : '\nnot sampled by the policy');
      part.append(span);
    });
    report.painted = t.text.length;
    return known.length ? `${HOW[by].what}: ${number(Math.min(...known))} to ${number(Math.max(...known))}` : 'not on disk';
  };
  const turnsOf = (t) => (t.conversation ?? [{ role: 'policy', content: t.completion }]).map((x) => turnBox(x.role, x.content));
  // The newest answers of two runs to a problem, side by side.
  const BESIDE = 20;
  const compare = async (item) => {
    state.chosen = item.row;
    show();
    const sides = item.pair.map((side) => side.slice(-BESIDE).reverse());
    const texts = await Promise.all(sides.map((side) => Promise.all(side.map(textsOf))));
    if (state.chosen !== item.row) return;
    const columns = node('div', 'columns'), [{ prompt, answer }] = texts[0];
    detail.replaceChildren(turnBox('prompt', prompt), node('p', 'note', answer === null ? '' : `expected: ${answer}`), columns);
    sides.forEach((side, k) => {
      const column = node('div', 'column'), n = item.pair[k].length;
      column.append(node('h3', '', `${data.names[cols.run[side[0]]]}: ${rights(item.pair[k])} of ${n} right`));
      if (n > side.length) column.append(node('p', 'note', `the newest ${side.length}`));
      side.forEach((i, j) => {
        const step = cols.step[i] === null ? '' : `step ${cols.step[i]}, `, head = node('div', 'note');
        head.append(mark(i), ` ${step}reward ${number(cols.reward[i])}, ${cols.length[i]} tokens`);
        const turns = turnsOf(texts[k][j]);
        for (const box of turns) box.onclick = () => choose(i);
        column.append(head, ...turns);
      });
      columns.append(column);
    });
  };
  const open = (item) => item.pair ? compare(item) : choose(item.row);
  const choose = async (i) => {
    state.chosen = i;
    show();
    const [t, toks] = [await textsOf(i), await tokensOf(i)];
    if (state.chosen !== i) return;
    detail.replaceChildren();
    const title = node('h3');
    title.append(mark(i), ` ${name(i)}, sample ${cols.sample[i]}`);
    const others = node('button', '', 'all answers to this problem');
    others.onclick = () => only(i);
    const box = node('div', 'tokens');
    detail.append(title, turnBox('prompt', t.prompt), others);
    const facts = {
      answer: t.answer, extracted: t.extracted, verdict: `${number(cols.score[i])} (${cols.status[i]})`,
      reason: t.detail, parts: t.parts && Object.entries(t.parts).map(([k, v]) => `${k} ${number(v)}`).join(', '),
      reward: number(cols.reward[i]), advantage: number(cols.advantage[i]),
      length: `${cols.length[i]} tokens${cols.truncated[i] ? ', cut off' : ''}`,
    };
    const dl = node('dl');
    for (const [k, v] of Object.entries(facts)) if (v !== null && v !== undefined && v !== '') dl.append(node('dt', '', k), node('dd', '', `${v}`));
    detail.append(dl);
    if (!toks.text) {
      box.append(...turnsOf(t));
      detail.append(box);
      return;
    }
    const buttons = node('div', 'by'), said = node('p', 'note');
    const paintNow = () => {
      buttons.querySelectorAll('button').forEach((b) => b.classList.toggle('on', b.dataset.by === by));
      said.textContent = paint(box, toks, i);
    };
    for (const h of Object.keys(HOW)) {
      const had = h === 'kl' ? toks.ref_logp : h === 'advantage' || h === 'turn' || toks[h];
      if (!had) continue;
      const b = node('button', '', h);
      b.dataset.by = h;
      b.onclick = () => { by = h; paintNow(); };
      buttons.append(b);
    }
    detail.append(buttons, said, box);
    paintNow();
  };

  const options = (id, all, pairs) => {
    const chosen = el(id).value;
    el(id).replaceChildren(new Option(all, ''), ...pairs.map(([v, t]) => new Option(t, v)));
    el(id).value = chosen;
  };
  // The columns of all answers, with the filters and the list.
  const read = async (text, top) => {
    cols = await unpack(text);
    strongest = cols.advantage.reduce((m, x) => Math.max(m, Math.abs(x ?? 0)), 0);
    options('f-run', 'all runs', data.names.map((n, i) => [i, n]));
    options('f-other', 'beside no other run', data.names.map((n, i) => [i, `beside ${n}`]));
    for (const id of ['f-run', 'f-other']) el(id).hidden = data.names.length < 2;
    for (const name of RANGES) {
      const known = cols[name].filter((x) => x !== null);
      el(`${name}-from`).placeholder = number(known.reduce((m, x) => Math.min(m, x), known[0]));
      el(`${name}-to`).placeholder = number(known.reduce((m, x) => Math.max(m, x), known[0]));
    }
    el('viewer').hidden = !data.rows;
    el('no-answers').hidden = data.rows > 0;
    await filter(null, top);
    if (data.rows && state.chosen < 0) open(state.items[0]);
  };

  // ---- a live page: new data without reloading
  const title = (div) => `${div.dataset.key} ${data.figures[div.dataset.key][+div.dataset.i].figure.layout.title.text}`;
  const refresh = async () => {
    const page = new DOMParser().parseFromString(await (await fetch('.')).text(), 'text/html');
    const kept = new Map([...drawn()].map((div) => [title(div), div]));
    data = JSON.parse(page.getElementById('data').textContent);
    for (const id of ['overview', 'runs', 'pass', 'curves', 'alarms', 'support', 'answer-figures']) {
      const old = el(id), fresh = document.adoptNode(page.getElementById(id));
      const unfolded = [...old.querySelectorAll('details')].map((d) => d.open);
      fresh.querySelectorAll('details').forEach((d, k) => { d.open = unfolded[k] ?? d.open; });
      old.replaceWith(fresh);
      watch(fresh);
      // Drawn figures stay, with their zoom.
      for (const div of fresh.querySelectorAll('.figure')) {
        const same = kept.get(title(div));
        if (!same) continue;
        same.dataset.i = div.dataset.i;
        div.replaceWith(same);
        draw(same);
      }
    }
    opened.clear();
    await read(page.getElementById('columns').textContent, list.scrollTop);
    report.version = data.version;
  };
  const follow = () => {
    let last = Promise.resolve();
    new EventSource('events').onmessage = (e) => {
      last = last.then(() => +e.data === data.version ? null : refresh()).catch(console.error);
    };
  };
  const start = async () => {
    let wait;
    for (const id of ['f-run', 'f-other', 'f-right', 'f-more', 'group']) el(id).onchange = filter;
    const typed = ['search', 'f-prompt', ...RANGES.flatMap((name) => [`${name}-from`, `${name}-to`])];
    for (const id of typed) el(id).oninput = () => { clearTimeout(wait); wait = setTimeout(filter, 200); };
    el('f-problem').onclick = () => only(null);
    list.onscroll = show;
    list.onkeydown = (e) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (!by) return;
      e.preventDefault();
      let k = state.items.findIndex((x) => x.row === state.chosen) + by;
      while (state.items[k] && state.items[k].row === undefined) k += by;
      if (!state.items[k]) return;
      if (k * HEIGHT < list.scrollTop) list.scrollTop = k * HEIGHT;
      if ((k + 1) * HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = (k + 1) * HEIGHT - list.clientHeight;
      open(state.items[k]);
    };
    await read(el('columns').textContent);
    Object.assign(report, { choose, filter, only, state, opened });
    report.ready = true;
    report.took = performance.now();
    if (data.version !== null) follow();
  };
  start();
})();
