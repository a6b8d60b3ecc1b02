// A distributed log: transfers between accounts are appended, and a reader that follows the log
// knows every balance, without asking whoever made the transfers.
//
//   cmake -B build && cmake --build build && build/log
//
// The store, the writer and the reader are threads here, so that one command shows it all; with a
// process or a host for each, nothing in them would change but the addresses and devices.
#include "verbena/apps/log.h"

#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using verbena::Status;

constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kAccounts = 4;
constexpr uint32_t kTransfers = 1000;

struct Transfer {
  uint32_t from;
  uint32_t to;
  int64_t amount;
};

using Controls = std::vector<std::unique_ptr<verbena::ControlConnection>>;

// Takes front-ends in until it is stopped. It runs no code when they append or read.
void serve(const std::stop_token& stop, verbena::LogStore& store,
           verbena::ControlListener& listener, Controls& controls) {
  while (!stop.stop_requested()) {
    auto control = listener.accept(/*timeout_ns=*/1'000'000);
    if (control.ok()) {
      controls.push_back(std::make_unique<verbena::ControlConnection>(std::move(*control)));
      const Status accepted = store.accept(*controls.back());
      if (!accepted.ok()) std::cerr << "log: " << accepted.message() << '\n';
    }
    store.maintain();  // also frees what was trimmed
  }
}

Status run() {
  const auto secret = verbena::JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto listener, verbena::ControlListener::listen("127.0.0.1", 0, secret));
  Controls controls;  // outlive the store, whose front-ends' they are
  VERBENA_ASSIGN_OR_RETURN(auto store,
                           verbena::LogStore::expose(device, domain, {.capacity_bytes = 1 << 20}));
  std::jthread server(
      [&](const std::stop_token& stop) { serve(stop, *store, listener, controls); });

  // Each opens the log over a connection of its own; with replicas, over one for each.
  VERBENA_ASSIGN_OR_RETURN(auto to_write, verbena::ControlConnection::connect(
                                              "127.0.0.1", listener.port(), secret, kTenSecondsNs));
  verbena::ControlConnection* const writes[] = {&to_write};
  VERBENA_ASSIGN_OR_RETURN(auto writer, verbena::open_log_writer(device, domain, writes));
  VERBENA_ASSIGN_OR_RETURN(auto to_read, verbena::ControlConnection::connect(
                                             "127.0.0.1", listener.port(), secret, kTenSecondsNs));
  verbena::ControlConnection* const reads[] = {&to_read};
  VERBENA_ASSIGN_OR_RETURN(auto reader, verbena::open_log_reader(device, domain, reads));

  for (uint32_t i = 0; i < kTransfers; ++i) {
    const Transfer transfer = {i % kAccounts, (i * 3 + 1) % kAccounts, i};
    const std::string_view record(reinterpret_cast<const char*>(&transfer), sizeof(transfer));
    VERBENA_RETURN_IF_ERROR(writer->append(record).status());  // acknowledged: it is in the log
  }

  int64_t balances[kAccounts] = {};
  for (uint32_t read = 0; read < kTransfers;) {
    VERBENA_ASSIGN_OR_RETURN(const auto records, reader->next());
    for (const verbena::LogRecord& record : records) {
      Transfer transfer;
      std::memcpy(&transfer, record.bytes.data(), sizeof(transfer));
      balances[transfer.from] -= transfer.amount;
      balances[transfer.to] += transfer.amount;
      ++read;
    }
    VERBENA_RETURN_IF_ERROR(reader->trim());  // nobody else needs them
  }
  int64_t sum = 0;
  for (const int64_t balance : balances) sum += balance;
  std::cout << kTransfers << " transfers, the balances add up to " << sum << '\n';
  return Status::ok_status();
}

}  // namespace

int main() {
  const Status status = run();
  if (!status.ok()) std::cerr << "log: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
