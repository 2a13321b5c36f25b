// Which columns of a table, or part of a picture, lie beyond the edge of a box? A shadow and a sentence tell it.

// Columns of the tables in a box that end right of the box: those of the table with most.
function columnsBeyond(box) {
  const edge = box.getBoundingClientRect().right + 1;
  const beyond = (row) => [...row.cells].filter((cell) => cell.getBoundingClientRect().right > edge).length;
  return Math.max(0, ...[...box.querySelectorAll("table")].map((table) => (table.rows.length ? beyond(table.rows[0]) : 0)));
}

function cue(box) {
  const more = columnsBeyond(box);
  const cut = more > 0 || box.scrollWidth - box.clientWidth - box.scrollLeft > 1;
  box.classList.toggle("cutright", cut);
  box.classList.toggle("cutleft", box.scrollLeft > 1);
  const known = box.nextElementSibling && box.nextElementSibling.classList.contains("cue") ? box.nextElementSibling : null;
  const text = more ? `Scroll right for ${more} more ${more === 1 ? "column" : "columns"}.` : cut ? "Scroll right for the rest." : "";
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
