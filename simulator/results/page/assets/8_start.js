// Which page is this?

if (data.plan) startPlan(); else if (data.pairs) startDiff(); else start();
startCues();

// On paper, pictures are as wide as the paper, and light.
for (const [event, printed] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    document.documentElement.classList.toggle("paper", printed);
    dispatchEvent(new Event("resize"));
  });
}
