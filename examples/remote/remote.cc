// Remote memory: front-ends take tickets from one counter and write a record for each into a table,
// in the memory of a back-end that runs no code meanwhile.
//
//   cmake -B build && cmake --build build && build/remote
//
// Front-ends and back-end are threads here, so that one command shows it all; with a process or a
// host for each, nothing in them would change but the addresses and devices.
#include "verbena/remote.h"

#include <cstdint>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

namespace {

using verbena::PostResult;
using verbena::RemotePointer;
using verbena::Status;

constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kFrontEnds = 2;
constexpr uint64_t kTicketsOfEach = 10'000;

struct Record {
  uint64_t ticket;
  uint32_t front_end;
  uint32_t number;
};

// What lies where in the region, for all who use it.
constexpr RemotePointer<uint64_t> kNextTicket{.offset_bytes = 0};
constexpr RemotePointer<Record> kRecords{.offset_bytes = 64};
constexpr uint64_t kRegionBytes = 64 + kFrontEnds * kTicketsOfEach * sizeof(Record);

Status take_tickets(uint32_t front_end, uint16_t port, const verbena::JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(
      auto control, verbena::ControlConnection::connect("127.0.0.1", port, secret, kTenSecondsNs));
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto region, verbena::open_region(device, domain, control));
  for (uint32_t number = 0; number < kTicketsOfEach; ++number) {
    // The ticket is needed at once. The record may take its time, beside the next tickets.
    VERBENA_ASSIGN_OR_RETURN(const uint64_t ticket, region->fetch_and_add(kNextTicket, 1));
    const Record record = {ticket, front_end, number};
    for (;;) {
      const PostResult posted = region->post_write(kRecords + ticket, record, /*token=*/ticket);
      if (posted == PostResult::kPosted) break;
      if (posted == PostResult::kFailed) return region->error();
      region->poll([](const verbena::RemoteCompletion&) {});  // makes room
    }
  }
  while (region->outstanding() > 0 && region->status().ok()) {
    region->poll([](const verbena::RemoteCompletion&) {});
  }
  return region->status();
}

Status run() {
  const auto secret = verbena::JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(auto listener, verbena::ControlListener::listen("127.0.0.1", 0, secret));
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  std::vector<verbena::ControlConnection>
      controls;  // outlive the region, whose front-ends' they are
  controls.reserve(kFrontEnds);
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           verbena::expose_region(device, domain, {.size_bytes = kRegionBytes}));

  std::vector<Status> ends(kFrontEnds);
  std::vector<std::jthread> front_ends;
  for (uint32_t i = 0; i < kFrontEnds; ++i) {
    front_ends.emplace_back([&, i] { ends[i] = take_tickets(i, listener.port(), secret); });
  }
  for (uint32_t i = 0; i < kFrontEnds; ++i) {
    VERBENA_ASSIGN_OR_RETURN(auto control, listener.accept(kTenSecondsNs));
    controls.push_back(std::move(control));
    VERBENA_RETURN_IF_ERROR(region->accept(controls.back()));
  }
  front_ends.clear();
  for (const Status& end : ends) VERBENA_RETURN_IF_ERROR(end);

  uint64_t in_order = 0;
  for (uint64_t ticket = 0; ticket < kFrontEnds * kTicketsOfEach; ++ticket) {
    Record record;
    std::memcpy(&record, region->data() + (kRecords + ticket).offset_bytes, sizeof(record));
    in_order += record.ticket == ticket && record.front_end < kFrontEnds ? 1 : 0;
  }
  std::cout << in_order << " of " << kFrontEnds * kTicketsOfEach << " records in their places\n";
  return Status::ok_status();
}

}  // namespace

int main() {
  const Status status = run();
  if (!status.ok()) std::cerr << "remote: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
