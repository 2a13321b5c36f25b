// Which page is this?

if (data.pairs) startDiff(); else start();
