#include "client/testing/environment.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  berth::testing::Install();
  return RUN_ALL_TESTS();
}
