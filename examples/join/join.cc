// A distributed join: orders and customers lie on several executors, in no order; each executor
// gets the orders of some customers together with these, and sums them up.
//
//   cmake -B build && cmake --build build && build/join
//
// The executors are threads here, so that one command shows it all; with a process or a host for
// each, nothing in them would change but the addresses and devices. Tables of pyarrow, Parquet or a
// database come as ArrowArrayStreams, too.
#include "verbena/apps/join.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "verbena/apps/shuffle.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace {

using verbena::Status;

constexpr uint32_t kExecutors = 4;
constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr int64_t kCustomers = 1000;
constexpr int64_t kOrders = 20'000;

struct Executor {
  uint32_t number = 0;
  std::unique_ptr<verbena::ControlListener> listener;
  Status status;
  int64_t orders = 0;  // that it found, and their sum
  int64_t sum = 0;
};

// The part of both tables that an executor has: every fourth order and customer. Every second
// customer is of Berlin.
struct Part {
  explicit Part(uint32_t number) {
    for (int64_t id = number; id < kCustomers; id += kExecutors) {
      if (id % 2 == 0) customers_of_berlin.push_back(id);
    }
    for (int64_t id = number; id < kOrders; id += kExecutors) {
      customers.push_back(id * 7 % kCustomers);
      prices.push_back(id);
    }
  }

  std::vector<int64_t> customers_of_berlin;
  std::vector<int64_t> customers;  // of each order
  std::vector<int64_t> prices;
};

Status execute(const verbena::Device& device, const verbena::ProtectionDomain& domain,
               const verbena::JobSecret& secret, std::vector<Executor>& all, Executor& self) {
  // Everybody sends to everybody.
  VERBENA_ASSIGN_OR_RETURN(
      auto receiver,
      verbena::ShuffleReceiver::expose(
          device, domain,
          {.receiver = self.number, .receivers = kExecutors, .senders = kExecutors}));
  Status accepted;
  std::jthread accepting([&] { accepted = receiver->accept_all(*self.listener, kTenSecondsNs); });
  std::vector<verbena::ControlConnection> controls;
  for (const Executor& other : all) {
    VERBENA_ASSIGN_OR_RETURN(
        auto control, verbena::ControlConnection::connect("127.0.0.1", other.listener->port(),
                                                          secret, kTenSecondsNs));
    controls.push_back(std::move(control));
  }
  VERBENA_ASSIGN_OR_RETURN(
      auto sender,
      verbena::open_shuffle_sender(device, domain, std::move(controls), {.sender = self.number}));
  accepting.join();
  VERBENA_RETURN_IF_ERROR(accepted);

  const Part part(self.number);
  const verbena::PlainColumn orders[] = {{"customer", "l", part.customers.data()},
                                         {"price", "l", part.prices.data()}};
  const verbena::PlainColumn customers[] = {{"id", "l", part.customers_of_berlin.data()}};
  ArrowArrayStream left;
  ArrowArrayStream right;
  ArrowArrayStream joined;
  verbena::stream_of_columns(part.prices.size(), orders, &left);
  verbena::stream_of_columns(part.customers_of_berlin.size(), customers, &right);
  VERBENA_RETURN_IF_ERROR(verbena::join_shuffled(&left, &right, {.keys = {{"customer", "id"}}},
                                                 {*sender, *receiver, &domain}, &joined)
                              .status());
  ArrowArray batch;
  while (joined.get_next(&joined, &batch) == 0 && batch.release != nullptr) {
    const auto* const prices = static_cast<const int64_t*>(batch.children[1]->buffers[1]);
    for (int64_t i = 0; i < batch.length; ++i) self.sum += prices[i];
    self.orders += batch.length;
    batch.release(&batch);
  }
  joined.release(&joined);
  return Status::ok_status();
}

Status run() {
  const auto secret = verbena::JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  std::vector<Executor> all(kExecutors);
  for (uint32_t i = 0; i < kExecutors; ++i) {
    VERBENA_ASSIGN_OR_RETURN(auto listener,
                             verbena::ControlListener::listen("127.0.0.1", 0, secret));
    all[i].number = i;
    all[i].listener = std::make_unique<verbena::ControlListener>(std::move(listener));
  }
  {
    std::vector<std::jthread> threads;
    for (Executor& self : all) {
      threads.emplace_back([&] { self.status = execute(device, domain, secret, all, self); });
    }
  }
  int64_t orders = 0;
  int64_t sum = 0;
  for (const Executor& executor : all) {
    VERBENA_RETURN_IF_ERROR(executor.status);
    orders += executor.orders;
    sum += executor.sum;
  }
  std::cout << orders << " of " << kOrders << " orders are of customers in Berlin, for " << sum
            << " in all\n";
  return Status::ok_status();
}

}  // namespace

int main() {
  const Status status = run();
  if (!status.ok()) std::cerr << "join: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
