// Which columns and rows of a table, or part of a picture, lie beyond the edge of a box? A shadow and a sentence tell it.

// Columns of the tables in a box that end right of the box: those of the table with most.
function columnsBeyond(box) {
  const edge = box.getBoundingClientRect().right + 1;
  const beyond = (row) => [...row.cells].filter((cell) => cell.getBoundingClientRect().right > edge).length;
  return Math.max(0, ...[...box.querySelectorAll("table")].map((table) => (table.rows.length ? beyond(table.rows[0]) : 0)));
}

// Shown rows of the tables in a box that end below the box.
function rowsBeyond(box) {
  if (box.scrollHeight - box.clientHeight <= 1) return 0;
  const edge = box.getBoundingClientRect().bottom + 1;
  return [...box.querySelectorAll("tbody tr")].filter((row) => row.getBoundingClientRect().bottom > edge).length;
}

function cue(box) {
  const [more, below] = [columnsBeyond(box), rowsBeyond(box)];
  const cut = more > 0 || box.scrollWidth - box.clientWidth - box.scrollLeft > 1;
  box.classList.toggle("cutright", cut);
  box.classList.toggle("cutleft", box.scrollLeft > 1);
  const known = box.nextElementSibling && box.nextElementSibling.classList.contains("cue") ? box.nextElementSibling : null;
  const counted = (count, noun) => `${count.toLocaleString("en")} more ${noun}${count === 1 ? "" : "s"}`;
  const sentences = [more ? `Scroll right for ${counted(more, "column")}.` : cut ? "Scroll right for the rest." : "",
    below ? `Scroll down for ${counted(below, "row")}.` : ""];
  const text = sentences.filter(Boolean).join(" ");
  if (known && known.textContent !== text) known.textContent = text;
  if (!known && text) box.after(make("p", { class: "note cue", text }));
}

// Boxes change with the window, with a panel that opens and with every table that is drawn anew.
function startCues() {
  const seen = new WeakSet();
  const sizes = new ResizeObserver((entries) => entries.forEach((one) => cue(one.target)));
  const look = () => document.querySelectorAll(".scroll").forEach((box) => {
    cue(box);
    if (seen.has(box)) return;
    seen.add(box);
    sizes.observe(box);
    box.addEventListener("scroll", () => cue(box), { passive: true });
  });
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
  look();
}
