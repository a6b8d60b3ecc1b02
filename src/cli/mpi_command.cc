// `verbena mpi -- mpiexec ...`: an unmodified MPI program whose messages go over Verbena's
// libfabric provider.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/run_command.h"
#include "src/cli/tool.h"

namespace verbena::cli {
namespace {

// What each MPI needs to send all messages by libfabric, those within the host too. A variable that
// is set already stays: who sets it wants something else.
constexpr std::pair<const char*, const char*> kSettings[] = {
    {"FI_PROVIDER", "verbena"},
    // MPICH
    {"MPIR_CVAR_CH4_NETMOD", "ofi"},
    {"MPIR_CVAR_NOLOCAL", "1"},
    // Open MPI
    {"OMPI_MCA_pml", "cm"},
    {"OMPI_MCA_mtl", "ofi"},
    {"OMPI_MCA_opal_common_ofi_provider_include", "verbena"},
    {"OMPI_MCA_btl", "self,ofi"},
    // Intel MPI
    {"I_MPI_FABRICS", "ofi"},
    {"I_MPI_OFI_PROVIDER", "verbena"},
};

Status set_up_environment() {
  VERBENA_ASSIGN_OR_RETURN(const std::string library, find_library("libverbena-fi.so"));
  if (Status set =
          set_environment("FI_PROVIDER_PATH", std::filesystem::path(library).parent_path());
      !set.ok())
    return set;
  for (const auto& [name, value] : kSettings) {
    if (std::getenv(name) != nullptr) continue;
    if (Status set = set_environment(name, value); !set.ok()) return set;
  }
  return {};
}

}  // namespace

void add_mpi_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "mpi", "Start an unmodified MPI program whose messages Verbena carries, through libfabric");
  command->prefix_command();
  // Parsed by run_other_program(); these are for the help page.
  const auto unused = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("MPIEXEC", *unused,
                   "The launcher of MPICH or Open MPI and its arguments, behind --")
      ->option_text("...");
  command->callback([unused] {});
  command->footer(examples_text({"verbena mpi -- mpiexec -n 4 ./program",
                                 "VERBENA_DEVICE=mlx5_0 verbena mpi -- mpiexec -n 4 ./program"}) +
                  "\nVERBENA_DEVICE names the device (soft0); variables that are set already, such "
                  "as FI_PROVIDER, stay as they are.");
}

int run_mpi_program(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].empty()) {
    return fail_command(
        kExitUsage, "mpi: no program given; usage: verbena mpi -- mpiexec -n 4 PROGRAM [ARGS...]");
  }
  if (const Status set = set_up_environment(); !set.ok())
    return fail_command(kExitFailure, set.message());
  return replace_process(arguments);
}

}  // namespace verbena::cli
