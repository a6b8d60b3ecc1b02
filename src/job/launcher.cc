#include "src/job/launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "src/job/slurm_nodes.h"
#include "verbena/job.h"

namespace verbena::job {

namespace {

// Below the ports that systems hand out by themselves, above those of well-known services.
constexpr uint32_t kFirstDerivedPort = 20'000;
constexpr uint32_t kDerivedPorts = 12'000;

// Nothing where the variable is unset.
Result<std::optional<int>> number_in(const Environment& environment, const char* variable) {
  const std::string text = environment(variable);
  if (text.empty()) return std::optional<int>();
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{} is '{}' in the environment, which is not a number", variable, text));
  }
  return std::optional<int>(value);
}

// Jobs that run at once on a host should not meet at one port: it follows from the job's name.
uint16_t derived_port(const std::string& job_name) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job_name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<uint16_t>(kFirstDerivedPort + hash % kDerivedPorts);
}

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* other_size;  // where `size` is not set
  Status (*complete)(const Environment& environment, Placement* placement);
};

Status complete_pmi(const Environment& environment, Placement* placement) {
  VERBENA_ASSIGN_OR_RETURN(const std::optional<int> descriptor, number_in(environment, "PMI_FD"));
  placement->pmi_descriptor = descriptor.value_or(-1);
  return {};
}

Status complete_open_mpi(const Environment& environment, Placement* placement) {
  // It tells its programs no address; but where all are on one host, they need none.
  VERBENA_ASSIGN_OR_RETURN(const std::optional<int> local,
                           number_in(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  if (local == placement->size) {
    std::string name = environment("PMIX_NAMESPACE");
    if (name.empty()) name = environment("OMPI_MCA_ess_base_jobid");
    placement->coordinator = fmt::format("127.0.0.1:{}", derived_port(name));
  }
  return {};
}

Status complete_slurm(const Environment& environment, Placement* placement) {
  std::string nodes = environment("SLURM_STEP_NODELIST");
  if (nodes.empty()) nodes = environment("SLURM_JOB_NODELIST");
  const std::string first = first_slurm_node(nodes);
  if (!first.empty()) {
    const std::string name = environment("SLURM_JOB_ID") + "." + environment("SLURM_STEP_ID");
    placement->coordinator = fmt::format("{}:{}", first, derived_port(name));
  }
  return {};
}

Status complete_nothing(const Environment&, Placement*) { return {}; }

// Slurm's variables come last: other launchers run on top of it. Of those, srun with PMIx counts in
// PMIX_RANK.
constexpr Launcher kLaunchers[] = {
    {"the environment", "VERBENA_RANK", "VERBENA_SIZE", "VERBENA_SIZE", complete_nothing},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
     complete_open_mpi},
    {"PMI", "PMI_RANK", "PMI_SIZE", "PMI_SIZE", complete_pmi},
    {"PMIx under Slurm", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", complete_slurm},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", complete_slurm},
};

}  // namespace

std::string process_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : "";
}

Result<Placement> find_placement(const Environment& environment) {
  Placement placement;
  for (const Launcher& launcher : kLaunchers) {
    VERBENA_ASSIGN_OR_RETURN(const std::optional<int> rank, number_in(environment, launcher.rank));
    if (!rank) continue;
    VERBENA_ASSIGN_OR_RETURN(std::optional<int> size, number_in(environment, launcher.size));
    if (!size) {
      VERBENA_ASSIGN_OR_RETURN(size, number_in(environment, launcher.other_size));
    }
    if (!size || *size < 1 || *rank < 0 || *rank >= *size || *size > kMaxJobRanks) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("{} says rank {} of {} ({}, {}); ranks go from 0 to size - 1, and "
                      "there are at most {}",
                      launcher.name, *rank, size ? std::to_string(*size) : "an unknown number",
                      launcher.rank, launcher.size, kMaxJobRanks));
    }
    placement.rank = *rank;
    placement.size = *size;
    placement.launcher = launcher.name;
    VERBENA_RETURN_IF_ERROR(launcher.complete(environment, &placement));
    break;
  }
  const std::string coordinator = environment("VERBENA_COORDINATOR");
  if (!coordinator.empty()) {
    placement.coordinator = coordinator;
    placement.pmi_descriptor = -1;
  }
  return placement;
}

}  // namespace verbena::job
