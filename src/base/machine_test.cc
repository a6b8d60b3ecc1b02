#include "src/base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "src/base/build_info.h"
#include "src/base/runtime.h"

namespace verbena {
namespace {

TEST(MachineTest, ReadsTheCpuModel) {
  EXPECT_EQ(cpu_model_from("processor\t: 0\nvendor_id\t: X\nmodel name\t: Fast CPU @ 2 GHz: x\n"
                           "processor\t: 1\nmodel name\t: Other\n"),
            "Fast CPU @ 2 GHz: x");
  EXPECT_EQ(cpu_model_from("processor\t: 0\nBogoMIPS\t: 1\n\nModel\t\t: Raspberry Pi 5\n"),
            "Raspberry Pi 5");
  EXPECT_EQ(cpu_model_from("model names: no\nno separator"), "");
  EXPECT_EQ(cpu_model_from(""), "");
}

TEST(MachineTest, ReadsTheOsName) {
  EXPECT_EQ(os_name_from("NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(os_name_from("PRETTY_NAME='Alpine'"), "Alpine");
  EXPECT_EQ(os_name_from("PRETTY_NAME=Plain\n"), "Plain");
  EXPECT_EQ(os_name_from("PRETTY_NAME=\"\n"), "\"");
  EXPECT_EQ(os_name_from("ID=x\n"), "");
}

TEST(MachineTest, DescribesThisMachine) {
  const Machine& machine = this_machine();
  EXPECT_EQ(&machine, &this_machine());
  EXPECT_FALSE(machine.architecture.empty());
  EXPECT_FALSE(machine.kernel.empty());
  EXPECT_GE(machine.sockets, 1);
  EXPECT_GE(machine.cores, machine.sockets);
  EXPECT_GE(machine.hardware_threads, machine.cores);
  EXPECT_GE(machine.numa_nodes, 1);
  EXPECT_GT(machine.memory_bytes, 1u << 20);
  EXPECT_EQ(machine.page_bytes, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(machine.usable_cpus, usable_cpus());
  EXPECT_GT(machine.tsc_cycles_per_ns, 0);
  EXPECT_EQ(machine.commit, build_commit());
  EXPECT_EQ(machine.build, build_configuration());
  EXPECT_FALSE(machine.build.empty());
}

}  // namespace
}  // namespace verbena
