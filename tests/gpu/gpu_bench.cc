// The figures that need a GPU: prints one line for each (tests/bench/figure.h). tests/gpu/run starts this.
//
//   gpu_bench [REGEX]   only the figures whose name it finds

#include <iostream>

#include "tests/bench/figures.h"
#include "tests/gpu/arena_figures.h"
#include "tests/gpu/fence_figures.h"
#include "tests/gpu/lease_figures.h"
#include "tests/gpu/memory_figures.h"
#include "tests/gpu/module_figures.h"
#include "tests/gpu/scatter_figures.h"
#include "tests/support/testing.h"

int main(int argc, char** argv) {
  namespace bench = berth::bench;
  const bench::Programs programs = {.berthd = berth::testing::ProgramPath("daemon/berthd"),
                                    .echo_server = berth::testing::ProgramPath("tests/bench/echo_server"),
                                    .backend = "cuda"};
  return bench::RunFigures({{"arena", berth::gpu::ArenaFigures},
                            {"fence", berth::gpu::FenceFigures},
                            {"lease", berth::gpu::LeaseFigures},
                            {"block memory", berth::gpu::MemoryFigures},
                            {"scatter", berth::gpu::ScatterFigures},
                            {"module", berth::gpu::ModuleFigures}},
                           programs, argc > 1 ? argv[1] : "", bench::Format::kTable) == 0
             ? 0
             : 1;
}
