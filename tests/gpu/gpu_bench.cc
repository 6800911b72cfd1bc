// The measurements that need a GPU: prints one line for each (tests/bench/measurement.h). tests/gpu/run starts this
// program.
//
//   gpu_bench [REGEX]   only the measurements whose name matches

#include <iostream>

#include "tests/bench/measurements/measurements.h"
#include "tests/gpu/arena_measurements.h"
#include "tests/gpu/fence_measurements.h"
#include "tests/gpu/lease_measurements.h"
#include "tests/gpu/memory_measurements.h"
#include "tests/gpu/module_measurements.h"
#include "tests/gpu/publish_measurements.h"
#include "tests/gpu/scatter_measurements.h"
#include "tests/support/testing.h"

int main(int argc, char** argv) {
  namespace bench = berth::bench;
  const bench::Programs programs = {.berthd = berth::testing::ProgramPath("daemon/berthd"),
                                    .echo_server = berth::testing::ProgramPath("tests/bench/echo_server"),
                                    .backend = "cuda"};
  return bench::RunMeasurements({{"arena", berth::gpu::ArenaMeasurements},
                                 {"fence", berth::gpu::FenceMeasurements},
                                 {"lease", berth::gpu::LeaseMeasurements},
                                 {"block memory", berth::gpu::MemoryMeasurements},
                                 {"publish", berth::gpu::PublishMeasurements},
                                 {"scatter", berth::gpu::ScatterMeasurements},
                                 {"module", berth::gpu::ModuleMeasurements}},
                                programs, argc > 1 ? argv[1] : "", bench::Format::kTable) == 0
             ? 0
             : 1;
}
