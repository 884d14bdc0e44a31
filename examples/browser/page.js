// Shows a network's prediction on a plane, and at the mouse its gradient and its Hessian, which
// onnxruntime-web computes from the models of models.py.
const canvas = document.getElementById("plane");
const context = canvas.getContext("2d");
const numbers = document.getElementById("numbers");
const REACH = 2; // the plane goes from -REACH to REACH
const CELLS = 60;

const place = (position) => (position / canvas.width) * 2 * REACH - REACH;
const pixel = (coordinate) => ((coordinate + REACH) / (2 * REACH)) * canvas.width;

async function prediction(session) {
  const points = new Float32Array(CELLS * CELLS * 2);
  for (let row = 0; row < CELLS; row++) {
    for (let column = 0; column < CELLS; column++) {
      const at = 2 * (row * CELLS + column);
      points[at] = ((column + 0.5) / CELLS) * 2 * REACH - REACH;
      points[at + 1] = ((row + 0.5) / CELLS) * 2 * REACH - REACH;
    }
  }
  const feeds = { points: new ort.Tensor("float32", points, [CELLS * CELLS, 2]) };
  return (await session.run(feeds)).result.data;
}

function drawnPlane(values) {
  const size = canvas.width / CELLS;
  const largest = Math.max(...values.map(Math.abs));
  for (let i = 0; i < values.length; i++) {
    const share = Math.min(1, Math.abs(values[i]) / largest);
    context.fillStyle = values[i] > 0 ? `rgba(40, 90, 200, ${share})` : `rgba(230, 130, 20, ${share})`;
    context.fillRect((i % CELLS) * size, Math.floor(i / CELLS) * size, size, size);
  }
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

// The eigenvalues and the angle of the first eigenvector of [[a, b], [b, d]].
function axes(a, b, d) {
  const middle = (a + d) / 2;
  const radius = Math.hypot((a - d) / 2, b);
  return { values: [middle + radius, middle - radius], angle: Math.atan2(2 * b, a - d) / 2 };
}

function drawAt(x, y, slope, curvature) {
  const length = 60 / (1 + Math.hypot(slope[0], slope[1]));
  context.lineWidth = 3;
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(pixel(x), pixel(y));
  context.lineTo(pixel(x) + slope[0] * length, pixel(y) + slope[1] * length);
  context.stroke();
  const { values, angle } = axes(curvature[0], curvature[1], curvature[3]);
  values.forEach((value, i) => {
    const reach = 50 * Math.sqrt(Math.abs(value) / (1 + Math.abs(value)));
    const turned = angle + (i * Math.PI) / 2;
    context.setLineDash(value > 0 ? [] : [4, 4]);
    context.beginPath();
    context.moveTo(pixel(x) - reach * Math.cos(turned), pixel(y) - reach * Math.sin(turned));
    context.lineTo(pixel(x) + reach * Math.cos(turned), pixel(y) + reach * Math.sin(turned));
    context.stroke();
  });
  const [big, small] = values.map((value) => 50 * Math.sqrt(Math.abs(value) / (1 + Math.abs(value))));
  context.lineWidth = 1;
  context.setLineDash([]);
  context.beginPath();
  context.ellipse(pixel(x), pixel(y), big, small, angle, 0, 2 * Math.PI);
  context.stroke();
}

async function start() {
  ort.env.wasm.numThreads = 1;
  const atPoint = await ort.InferenceSession.create("at_point.onnx");
  const everywhere = await ort.InferenceSession.create("prediction.onnx");
  const plane = drawnPlane(await prediction(everywhere));

  async function show(x, y) {
    const feeds = { point: new ort.Tensor("float32", Float32Array.of(x, y), [2]) };
    const result = await atPoint.run(feeds);
    const slope = [...result.result_slope.data];
    const curvature = [...result.result_curvature.data];
    const value = result.result_value.data[0];
    context.putImageData(plane, 0, 0);
    drawAt(x, y, slope, curvature);
    numbers.textContent = JSON.stringify({ x, y, value, slope, curvature });
  }

  let isBusy = false; // a session runs one call at a time
  canvas.addEventListener("mousemove", async (event) => {
    if (isBusy) return;
    isBusy = true;
    await show(place(event.offsetX), place(event.offsetY));
    isBusy = false;
  });
  await show(0.5, -0.25);
}

start();
