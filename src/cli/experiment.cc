#include "src/cli/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/base/tsc.h"
#include "src/bench/interrupt.h"
#include "src/bench/progress.h"
#include "src/bench/responder_process.h"
#include "src/bench/responder_service.h"
#include "src/bench/result_file.h"
#include "src/bench/results_table.h"
#include "src/bench/session.h"
#include "src/bench/size_list.h"
#include "src/cli/tool.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace verbena::cli {

namespace {

constexpr int64_t kConnectTimeoutNs = 10'000'000'000;
constexpr int64_t kAcceptLookNs = 100'000'000;

struct Cpus {
  int requester = -1;
  int responder = -1;
};

// A core of its own for each side, where there are two.
Cpus choose_cpus(bool both_here) {
  const std::vector<int> cpus = usable_cpus();
  if (!both_here) return {.requester = cpus[0], .responder = -1};
  if (cpus.size() < 2) {
    log_warning("there is one CPU for two processes that poll: they take turns, which is slow");
    return {};
  }
  return {.requester = cpus[0], .responder = cpus[1]};
}

void pin(int cpu) {
  if (cpu >= 0 && !pin_this_thread(cpu)) {
    log_warning("the system does not let this process stay on CPU {}; results will vary more", cpu);
  }
}

// The other side: a process of ours, or a listener somewhere.
struct Peer {
  std::unique_ptr<bench::ResponderProcess> process;
  std::optional<ControlConnection> connection;
  ControlConnection& control() { return process != nullptr ? process->control() : *connection; }
};

Result<Peer> reach_peer(const Experiment& experiment, const Cpus& cpus) {
  Peer peer;
  if (experiment.host.empty()) {
    VERBENA_ASSIGN_OR_RETURN(peer.process, bench::ResponderProcess::start(
                                               experiment.device, cpus.responder, experiment.port));
    return peer;
  }
  VERBENA_ASSIGN_OR_RETURN(const JobSecret secret, JobSecret::from_file(experiment.secret_file));
  VERBENA_ASSIGN_OR_RETURN(
      peer.connection,
      ControlConnection::connect(experiment.host, experiment.port, secret, kConnectTimeoutNs));
  return peer;
}

nlohmann::json settings_json(const Experiment& experiment, const Cpus& cpus) {
  const bench::Plan& plan = experiment.plan;
  const bench::RunLength& length = plan.run.length;
  nlohmann::json settings = {{"runs", plan.runs}, {"verify", plan.run.verify}};
  if (length.requests == UINT64_MAX) {
    settings["run_duration_ns"] = length.duration_ns;
  } else {
    settings["run_requests"] = length.requests;
  }
  if (cpus.requester >= 0) settings["requester_cpu"] = cpus.requester;
  if (cpus.responder >= 0) settings["responder_cpu"] = cpus.responder;
  if (!experiment.host.empty()) settings["responder_host"] = experiment.host;
  return settings;
}

std::string point_text(const bench::Point& point) {
  return fmt::format("{}, {} request, {} response, {} pending", protocol_name(point.protocol),
                     bench::size_text(point.request_bytes), bench::size_text(point.response_bytes),
                     point.pending);
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
                                  point_text(first->point), first->error)));
  return kExitFailure;
}

}  // namespace

int run_experiment(const Experiment& experiment) {
  const bench::Plan& plan = experiment.plan;
  const Result<Device> device = Device::open(experiment.device);
  if (!device.ok()) return report_error(device.status());
  const Status possible = bench::check_plan(plan, device->info());
  if (!possible.ok()) return report_error(possible);
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  if (!domain.ok()) return report_error(domain.status());
  if (!experiment.json_path.empty()) {
    const Status writable = bench::check_writable(experiment.json_path);
    if (!writable.ok()) return report_error(writable);
  }
  if (!tsc_is_steady()) {
    log_warning("this machine's cycle counter is not steady: latencies come from a slower clock");
  }

  bench::catch_interrupts();
  // Before this process pins itself: a pinned one starts pinned ones.
  const Cpus cpus = choose_cpus(experiment.host.empty());
  Result<Peer> peer = reach_peer(experiment, cpus);
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!peer.ok()) return report_error(peer.status());
  pin(cpus.requester);

  const bench::ResultOrigin origin{experiment.device, experiment.command,
                                   settings_json(experiment, cpus)};
  Status written;
  bench::Progress progress(bench::count_runs(plan));
  bench::SessionHooks hooks;
  hooks.begins = [&](const bench::Point& point, uint32_t run) {
    progress.step(fmt::format("{}, run {}", point_text(point), run + 1));
  };
  hooks.ended = [&](const std::vector<bench::PointResult>& results) {
    if (experiment.json_path.empty() || !written.ok()) return;
    written = bench::write_json_file(experiment.json_path, bench::result_document(origin, results));
  };
  if (peer->process != nullptr) {
    hooks.reason_of_death = [&] { return peer->process->reason_of_death(); };
  }
  const std::vector<bench::PointResult> results =
      bench::measure_plan(plan, *device, *domain, peer->control(), hooks);
  progress.clear();
  bench::end_session(peer->control());

  if (!results.empty()) fmt::print("{}", bench::results_table(results));
  const int output = finish_output();
  if (bench::interrupted()) {
    fmt::print(stderr, "verbena: interrupted; {} points were finished{}\n", results.size(),
               experiment.json_path.empty() || results.empty()
                   ? ""
                   : fmt::format(" and are in {}", experiment.json_path));
    return bench::interrupt_exit_code();
  }
  if (!written.ok()) return report_error(written);
  const int failures = report_failures(results, bench::count_runs(plan) / plan.runs);
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
  fmt::print(stderr, "verbena: listening on {} for the other side: --connect HOST --port {}\n",
             listener->name(), listener->port());
  Result<ControlConnection> control = listener->accept(kAcceptLookNs);
  while (!control.ok() && control.status().code() == StatusCode::kTimeout &&
         !bench::interrupted()) {
    control = listener->accept(kAcceptLookNs);
  }
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!control.ok()) return report_error(control.status());
  // The last CPU: where both sides are tried out on one host, the requester has the first.
  pin(usable_cpus().back());
  const Status status = bench::serve_requester(*device, *domain, *control);
  if (bench::interrupted()) return bench::interrupt_exit_code();
  return status.ok() ? 0 : report_error(status);
}

}  // namespace verbena::cli
