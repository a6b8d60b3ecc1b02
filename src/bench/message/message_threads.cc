#include "src/bench/message/message_threads.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/bench/message/message_operations.h"
#include "src/bench/message/message_rank.h"
#include "src/bench/run/application_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/thread_connection.h"
#include "verbena/connection.h"

namespace verbena::bench {

namespace {

constexpr uint32_t kAddressType = 0x6d616472;  // "madr"

// --- who is who: rank 0 collects the addresses, and tells them all ---

Status send_addresses(ControlConnection& control, const std::vector<MessengerAddress>& addresses) {
  return control.send(std::as_bytes(std::span(addresses)));
}

Result<std::vector<MessengerAddress>> receive_addresses(ControlConnection& control,
                                                        uint32_t ranks) {
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame, control.receive(kSetupTimeoutNs));
  std::vector<MessengerAddress> addresses(ranks);
  if (frame.size() != ranks * sizeof(MessengerAddress)) {
    return Status(StatusCode::kProtocolViolation,
                  "rank 0 lists another number of ranks than the point has; run the same release "
                  "on all sides");
  }
  std::memcpy(addresses.data(), frame.data(), frame.size());
  return addresses;
}

Status know_all(NodeJob& job, uint32_t number, MessageRank& rank) {
  std::vector<std::unique_ptr<ControlConnection>> controls;
  std::vector<MessengerAddress> addresses = {rank.address()};
  for (uint32_t responding = 0; responding + 1 < rank.size(); ++responding) {
    VERBENA_ASSIGN_OR_RETURN(auto control, reach(job, number, responding));
    VERBENA_ASSIGN_OR_RETURN(
        const MessengerAddress address,
        control->receive_value<MessengerAddress>(kAddressType, kSetupTimeoutNs));
    addresses.push_back(address);
    controls.push_back(std::move(control));
  }
  for (const auto& control : controls) {
    VERBENA_RETURN_IF_ERROR(send_addresses(*control, addresses));
  }
  return rank.know(addresses);
}

Status open_and_measure(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  MessageRank rank(job, 0);
  MessageProgram program(rank);
  VERBENA_RETURN_IF_ERROR(rank.open());
  VERBENA_RETURN_IF_ERROR(program.open());
  VERBENA_RETURN_IF_ERROR(know_all(job, number, rank));
  VERBENA_RETURN_IF_ERROR(rank.meet());
  MessageOperations operations(rank, program);
  serve_application(job, number, operations, report.report, step);
  return Status::ok_status();
}

class OtherRank final : public RespondingTarget {
 public:
  OtherRank(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job), report_(report), rank_(job, number + 1), program_(rank_) {}

  Status prepare() override {
    VERBENA_RETURN_IF_ERROR(rank_.open());
    return program_.open();
  }
  Status connect(std::unique_ptr<ControlConnection> control, uint32_t /*requesting*/) override {
    VERBENA_RETURN_IF_ERROR(control->send_value(kAddressType, rank_.address()));
    VERBENA_ASSIGN_OR_RETURN(const std::vector<MessengerAddress> addresses,
                             receive_addresses(*control, rank_.size()));
    VERBENA_RETURN_IF_ERROR(rank_.know(addresses));
    return rank_.meet();
  }
  Status answer(const Step& step) override {
    program_.begin(step.phase);
    job_.team.finished();
    program_.take_part();
    rank_.abandon(program_.partners());
    rank_.end(report_.report, program_.operations());
    return rank_.status();
  }

 private:
  NodeJob& job_;
  ThreadReport& report_;
  MessageRank rank_;
  MessageProgram program_;
};

}  // namespace

void run_measuring_rank(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(open_and_measure(job, number, report, step), step);
}

void run_other_rank(NodeJob& job, uint32_t number, ThreadReport& report) {
  run_responding_steps(job, number, std::make_unique<OtherRank>(job, number, report), report);
}

}  // namespace verbena::bench
