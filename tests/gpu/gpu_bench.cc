// The figures that need a GPU: prints one line for each (tests/bench/figure.h). tests/gpu/run starts this.

#include <iostream>

#include "tests/bench/figures.h"
#include "tests/gpu/memory_figures.h"
#include "tests/support/testing.h"

int main() {
  namespace bench = berth::bench;
  const bench::Programs programs = {.berthd = berth::testing::ProgramPath("daemon/berthd"),
                                    .backend = "cuda"};
  return bench::RunFigures({{"block memory", berth::gpu::MemoryFigures}}, programs, /*filter=*/"",
                           bench::Format::kTable);
}
