#include "src/cli/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/base/log.h"
#include "src/base/output.h"
#include "src/base/runtime.h"
#include "src/base/tsc.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/explain/profiler.h"
#include "src/bench/result/model_evidence.h"
#include "src/bench/result/result_file.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/node_pool.h"
#include "src/bench/run/node_service.h"
#include "src/bench/run/progress.h"
#include "src/bench/run/session.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/cli/tool.h"
#include "src/device/sim/profile_variants.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace verbena::cli {

namespace {

constexpr int64_t kConnectTimeoutNs = 10'000'000'000;
constexpr int64_t kAcceptSliceNs = 100'000'000;

bool simulated(const Experiment& experiment) {
  return experiment.device.starts_with(sim::kDevicePrefix);
}

// The ranks from `first` on, which wait for points to measure, learn why there are none.
void refuse_ranks(Job& job, int first, const Status& why) {
  for (int rank = first; rank < job.size(); ++rank) {
    static_cast<void>(bench::send_failure(job.peer(rank), why));
  }
}

// One node per rank, in their order; that of this rank is a process of ours, which the others reach
// as they have reached us.
Result<std::unique_ptr<bench::NodePool>> nodes_of_job(const std::string& device, Job& job,
                                                      uint64_t stall_ns) {
  Result<std::unique_ptr<bench::NodePool>> pool =
      bench::NodePool::on_this_host(device, job.secret(), 0);
  if (pool.ok() && job.size() > 1) (*pool)->reach_at(bench::own_address(job.peer(1)));
  Status failure = pool.ok() ? (*pool)->take(1, stall_ns).status() : pool.status();
  if (!failure.ok()) refuse_ranks(job, 1, failure);
  for (int rank = 1; rank < job.size() && failure.ok(); ++rank) {
    Result<std::unique_ptr<bench::NodeLink>> node =
        bench::NodeLink::join(job.take_peer(rank), stall_ns);
    if (node.ok()) {
      (*pool)->add(std::move(*node));
    } else {
      failure = Status(node.status().code(), fmt::format("rank {} on {}: {}", rank, job.host(rank),
                                                         node.status().message()));
      refuse_ranks(job, rank + 1, failure);
    }
  }
  if (failure.ok()) return pool;
  return failure;
}

// Where the nodes come from: the ranks of a job, or processes of ours, and with --connect a
// responder that listens somewhere.
Result<std::unique_ptr<bench::NodePool>> find_nodes(const Experiment& experiment) {
  if (simulated(experiment)) return bench::NodePool::simulated(experiment.device);
  const uint64_t stall_ns = experiment.plan.run.stall_ns;
  if (experiment.job != nullptr) return nodes_of_job(experiment.device, *experiment.job, stall_ns);
  if (experiment.host.empty()) {
    return bench::NodePool::on_this_host(experiment.device, JobSecret::random(), experiment.port);
  }
  VERBENA_ASSIGN_OR_RETURN(const JobSecret secret, JobSecret::from_file(experiment.secret_file));
  VERBENA_ASSIGN_OR_RETURN(
      ControlConnection control,
      ControlConnection::connect(experiment.host, experiment.port, secret, kConnectTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(auto responder, bench::NodeLink::join(std::move(control), stall_ns));
  VERBENA_ASSIGN_OR_RETURN(auto pool, bench::NodePool::on_this_host(experiment.device, secret, 0));
  pool->set_last(std::move(responder));
  return pool;
}

// A job has so many nodes as ranks.
Status check_ranks(const Job& job, const std::vector<bench::PointGroup>& groups) {
  for (const bench::PointGroup& group : groups) {
    const bench::Point& point = group.front();
    VERBENA_ASSIGN_OR_RETURN(const bench::Wiring wiring, bench::wire(bench::shape_of(point)));
    const size_t needed = wiring.nodes.size();
    if (needed <= static_cast<size_t>(job.size())) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} needs {} ranks, one for each node, and the job has {}; start "
                              "more, or lower --nodes",
                              point.workload->text(point), needed, job.size()));
  }
  return Status::ok_status();
}

// --connect brings one responder node.
Status check_hosts(const Experiment& experiment, const std::vector<bench::PointGroup>& groups) {
  if (experiment.job != nullptr) return check_ranks(*experiment.job, groups);
  if (experiment.host.empty()) return Status::ok_status();
  for (const bench::PointGroup& group : groups) {
    const bench::Point& point = group.front();
    if (point.responder_nodes == 1 && point.topology != bench::Topology::kAllToAll) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--connect has one responder node, but {} needs {} of them; choose "
                              "one-to-one or M:1",
                              bench::topology_name(point.topology), point.responder_nodes));
  }
  return Status::ok_status();
}

nlohmann::json settings_json(const Experiment& experiment) {
  nlohmann::json settings = bench::plan_json(experiment.plan);
  settings.erase("sweeps");
  settings["seed"] = simulated(experiment) ? bench::simulation_seed() : run_seed();
  if (!experiment.host.empty()) settings["responder_host"] = experiment.host;
  if (experiment.job != nullptr) {
    for (int rank = 0; rank < experiment.job->size(); ++rank) {
      settings["hosts"].push_back(experiment.job->host(rank));
    }
  }
  return settings;
}

// One line about everything that failed; the table has the rest.
int report_failures(const std::vector<bench::PointResult>& results, uint64_t points) {
  const auto failed = [](const bench::PointResult& result) { return result.errors > 0; };
  const auto first = std::find_if(results.begin(), results.end(), failed);
  if (first == results.end()) return 0;
  const auto count = std::count_if(results.begin(), results.end(), failed);
  report_error(Status(StatusCode::kUnavailable,
                      fmt::format("{} of {} points failed{}: {}: {}", count, points,
                                  results.size() < points ? fmt::format(" and {} were not reached",
                                                                        points - results.size())
                                                          : "",
                                  first->point.workload->text(first->point), first->error)));
  return kExitFailure;
}

// Simulated nodes are in no job and on no other host, and no profiler sees their time.
Status check_simulated(const Experiment& experiment, const std::vector<bench::PointGroup>& groups) {
  if (experiment.job != nullptr || !experiment.host.empty() || experiment.plan.profile) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} simulates all nodes in this process: --connect, --job and --profile "
                        "are for real devices; leave them out",
                        experiment.device)};
  }
  bench::SimulatedNodes nodes(bench::simulation_seed(), true);
  VERBENA_RETURN_IF_ERROR(nodes.add(experiment.device, 1));
  return bench::check_points(groups, nodes.info());
}

// Only a simulated device has parameters to vary, and only the profile as given has variants.
Status check_variants(const Experiment& experiment) {
  if (experiment.plan.run.variants == 1) return Status::ok_status();
  const bool is_variant = experiment.device.find(sim::kVariantMark) != std::string::npos;
  if (simulated(experiment) && !is_variant) return Status::ok_status();
  return {StatusCode::kInvalidArgument,
          fmt::format("--variants {} varies the profile of a simulated RNIC, and {} is {}; leave "
                      "--variants out, or choose sim:PROFILE",
                      experiment.plan.run.variants, experiment.device,
                      is_variant ? "a single variant" : "a real device")};
}

// Whether all of it can be done here, before anything starts.
Status check_here(const Experiment& experiment, const std::vector<bench::PointGroup>& groups) {
  VERBENA_RETURN_IF_ERROR(check_variants(experiment));
  if (simulated(experiment)) {
    VERBENA_RETURN_IF_ERROR(check_simulated(experiment, groups));
  } else {
    VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open(experiment.device));
    VERBENA_RETURN_IF_ERROR(bench::check_points(groups, device.info()));
  }
  VERBENA_RETURN_IF_ERROR(check_hosts(experiment, groups));
  return experiment.json_path.empty() ? Status::ok_status()
                                      : bench::check_writable(experiment.json_path);
}

}  // namespace

int run_experiment(const Experiment& experiment) {
  const auto refuse = [&](const Status& why) {
    if (experiment.job != nullptr) refuse_ranks(*experiment.job, 1, why);
    return report_error(why);
  };
  const bench::Plan& plan = experiment.plan;
  const Result<std::vector<bench::PointGroup>> groups = bench::point_groups(plan);
  if (!groups.ok()) return refuse(groups.status());
  const Status possible = check_here(experiment, *groups);
  if (!possible.ok()) return refuse(possible);
  std::optional<bench::Profiler> profiler;
  if (plan.profile) {
    const bool nodes_here = experiment.job == nullptr && experiment.host.empty();
    Result<bench::Profiler> found = bench::Profiler::create(experiment.device, nodes_here);
    if (!found.ok()) return refuse(found.status());
    profiler = std::move(*found);
    if (!profiler->without_instructions().empty()) {
      log_warning("instructions are not counted: {}", profiler->without_instructions());
    }
  }
  if (!simulated(experiment) && !tsc_is_steady()) {
    log_warning("this machine's cycle counter is not steady: latencies come from a slower clock");
  }
  if (!simulated(experiment) && usable_cpus().size() < 2) {
    log_warning("there is one CPU for several polling processes: they take turns, which is slow");
  }

  const bench::ResultOrigin origin{experiment.device, experiment.command, settings_json(experiment),
                                   bench::plan_json(plan), plan.about};
  std::vector<bench::PointResult> before;
  if (experiment.resume) {
    Result<std::vector<bench::PointResult>> read =
        bench::read_results(experiment.json_path, origin, *groups);
    if (!read.ok()) return refuse(read.status());
    before = std::move(*read);
  }
  const uint64_t steps = bench::count_runs(*groups, plan.runs_of_point(), before);

  bench::catch_interrupts();
  Result<std::unique_ptr<bench::NodePool>> pool = find_nodes(experiment);
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!pool.ok()) return report_error(pool.status());

  Status written;
  bench::Progress progress(steps);
  bench::SessionHooks hooks;
  hooks.begins = [&](const bench::Point& point, uint32_t run) {
    progress.step(fmt::format("{}, run {}", point.workload->text(point), run + 1));
  };
  hooks.ended = [&](const std::vector<bench::PointResult>& results) {
    if (experiment.json_path.empty()) return;
    // Tried again after each run: a disk that is full now may have space later.
    written = bench::write_json_file(experiment.json_path, bench::result_document(origin, results));
  };
  if (profiler) {
    hooks.finishes = [&](bench::PointResult& result) {
      const Result<bench::Profile> profile = profiler->profile(**pool, result.point, plan.run);
      if (profile.ok()) {
        result.profile = bench::to_json(*profile, result.point);
      } else if (!bench::interrupted()) {
        progress.clear();
        log_warning("no profile: {}", profile.status().message());
      }
    };
  }
  const std::vector<bench::PointResult> results =
      bench::measure_points(*groups, plan.runs_of_point(), plan.run, **pool, hooks, before);
  progress.clear();

  if (!results.empty()) {
    const bench::Workload& workload = *results.front().point.workload;
    print_output("{}{}{}{}", workload.table(results), bench::bands_text(results),
                 bench::model_text(experiment.device), workload.profiles_table(results));
  }
  const int output = finish_output();
  if (bench::interrupted()) {
    const auto finished = std::count_if(results.begin(), results.end(), [&](const auto& result) {
      return result.errors == 0 && result.runs.size() == plan.runs_of_point();
    });
    const bool kept = !experiment.json_path.empty() && !results.empty() && written.ok();
    print_error_output("verbena: interrupted; {} points were finished{}\n", finished,
                       kept ? fmt::format("; what was measured is in {}, and --resume goes on",
                                          experiment.json_path)
                            : "");
    if (!written.ok()) report_error(written);
    return bench::interrupt_exit_code();
  }
  if (!written.ok()) return report_error(written);
  const int failures = report_failures(results, bench::count_runs(*groups, 1, {}));
  return failures != 0 ? failures : output;
}

int listen_for_experiment(const Listening& listening) {
  const Result<Device> device = Device::open(listening.device);
  if (!device.ok()) return report_error(device.status());
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  if (!domain.ok()) return report_error(domain.status());
  const Result<JobSecret> secret = JobSecret::from_file(listening.secret_file);
  if (!secret.ok()) return report_error(secret.status());
  Result<ControlListener> listener =
      ControlListener::listen(listening.address, listening.port, *secret);
  if (!listener.ok()) return report_error(listener.status());

  bench::catch_interrupts();
  print_error_output("verbena: listening on {} for the other side: --connect HOST --port {}\n",
                     listener->name(), listener->port());
  Result<ControlConnection> control = listener->accept(kAcceptSliceNs);
  while (!control.ok() && control.status().code() == StatusCode::kTimeout &&
         !bench::interrupted()) {
    control = listener->accept(kAcceptSliceNs);
  }
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!control.ok()) return report_error(control.status());
  const Status status = bench::serve_coordinator(*device, *domain, *secret, *control, 0);
  if (bench::interrupted()) return bench::interrupt_exit_code();
  return status.ok() ? 0 : report_error(status);
}

}  // namespace verbena::cli
