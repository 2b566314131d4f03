// Calls a service that it finds by xDS and counts how that goes. The contract is
// that of package clients (test/clients/doc.go).
'use strict';

const grpc = require('@grpc/grpc-js');
require('@grpc/grpc-js-xds').register();

const PERIOD_MS = 100;
const PACE_MS = 10;

const target = process.argv[2];
const [rate, deadlineMs, silenceMs] = process.argv.slice(3).map(Number);
const keepalive = { 'grpc.keepalive_time_ms': silenceMs, 'grpc.keepalive_timeout_ms': silenceMs };
const client = new grpc.Client(target, grpc.credentials.createInsecure(), silenceMs > 0 ? keepalive : {});
const identity = (bytes) => bytes;

let counts = { ok: {}, failed: [] };
let started = 0;
let pending = 0;
let stopping = false;

function call() {
  const begin = Date.now();
  let backend = '';
  started++;
  pending++;
  client
    .makeUnaryRequest('/grpc.health.v1.Health/Check', identity, identity, Buffer.alloc(0), { deadline: begin + deadlineMs }, (err) => {
      pending--;
      if (err) {
        counts.failed.push({ started: begin, code: err.code, text: err.details });
      } else {
        counts.ok[backend] = (counts.ok[backend] ?? 0) + 1;
      }
    })
    .on('metadata', (header) => {
      backend = String(header.get('backend')[0]);
    });
}

// pace starts the calls that are due: a timer that comes late delays them and
// leaves none out.
const begin = performance.now();
function pace() {
  const due = ((performance.now() - begin) * rate) / 1000;
  while (!stopping && started < due) {
    call();
  }
}

function report() {
  process.stdout.write(JSON.stringify({ time: Date.now(), ...counts }) + '\n');
  counts = { ok: {}, failed: [] };
  if (stopping && pending === 0) {
    process.exit(0); // the xDS client would keep the process
  }
}

function stop() {
  stopping = true;
}

setInterval(pace, PACE_MS);
setInterval(report, PERIOD_MS);
process.on('SIGTERM', stop);
process.stdin.on('end', stop).resume();
