#include "src/cli/job_experiment.h"

#include <utility>
#include <vector>

#include "src/bench/run/coordination.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/node_service.h"
#include "verbena/device.h"

namespace verbena::cli {

namespace {

// What a rank other than 0 does.
int serve_rank_zero(const std::string& device_name, Job& job) {
  bench::catch_interrupts();
  // Rank 0 prints what goes wrong here: one line, not one for each rank.
  const auto refuse = [&](const Status& status) {
    const Status sent = bench::send_failure(job.peer(0), status);
    return sent.ok() ? kExitFailure : report_error(status);
  };
  const Result<Device> device = Device::open(device_name);
  if (!device.ok()) return refuse(device.status());
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  if (!domain.ok()) return refuse(domain.status());
  const Status status = bench::serve_coordinator(*device, *domain, job.secret(), job.peer(0),
                                                 static_cast<uint64_t>(job.rank()));
  if (bench::interrupted()) return bench::interrupt_exit_code();
  return status.ok() ? 0 : report_error(status);
}

}  // namespace

std::vector<CLI::Option*> add_job_flags(CLI::App& command, JobFlags& flags) {
  return {
      command
          .add_flag("--job", flags.job,
                    "Several hosts: mpiexec, srun or ssh start this command once per host")
          ->option_text(" "),
      command
          .add_option("--rank", flags.rank,
                      "Several hosts: the rank of this process; 0 prints (launcher's)")
          ->option_text("N"),
      command.add_option("--size", flags.size, "Several hosts: the number of ranks (launcher's)")
          ->option_text("N"),
      command
          .add_option("--coordinator", flags.coordinator,
                      "Several hosts: where rank 0 listens (launcher's)")
          ->option_text("HOST:PORT"),
  };
}

int run_experiment_in_job(const JobFlags& flags, Experiment experiment) {
  JobOptions options;
  options.rank = flags.rank;
  options.size = flags.size;
  options.coordinator = flags.coordinator;
  options.secret_file = experiment.secret_file;
  Result<Job> job = Job::join(options);
  if (!job.ok()) return report_error(job.status());
  if (job->rank() != 0) return serve_rank_zero(experiment.device, *job);
  experiment.job = &*job;
  return run_experiment(experiment);
}

}  // namespace verbena::cli
