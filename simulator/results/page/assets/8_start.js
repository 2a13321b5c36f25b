// Which page is this?

if (data.plan) startPlan(); else if (data.pairs) startDiff(); else start();
startCues();
