// A distributed join: orders and customers lie on several executors, in no order; each executor
// gets the orders of some customers together with these, and sums them up.
//
//   cmake -B build && cmake --build build && build/join
//
// The executors are threads here, so that one command shows it all; with a process or a host for
// each, nothing in them would change but the addresses and devices. Tables of pyarrow, Parquet or a
// database come as ArrowArrayStreams, too.
#include "verbena/apps/join.h"

#include <atomic>
#include <iostream>
#include <thread>
#include <vector>

#include "verbena/apps/shuffle.h"
#include "verbena/must.h"

using verbena::must;

constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kExecutors = 4;
constexpr int64_t kCustomers = 1000;
constexpr int64_t kOrders = 20'000;

int main() {
  const auto secret = verbena::JobSecret::random();
  const auto device = must(verbena::Device::open("soft0"));
  const auto domain = must(verbena::ProtectionDomain::create(device));
  std::vector<verbena::ControlListener> listeners;
  std::vector<verbena::ShuffleAddress> addresses;
  for (uint32_t i = 0; i < kExecutors; ++i) {
    listeners.push_back(must(verbena::ControlListener::listen("127.0.0.1", 0, secret)));
    addresses.push_back({"127.0.0.1", listeners.back().port()});
  }
  std::atomic<int64_t> orders = 0;
  std::atomic<int64_t> sum = 0;

  const auto execute = [&](uint32_t number) {
    // Everybody sends to everybody.
    auto receiver = must(verbena::ShuffleReceiver::expose(
        device, domain, {.receiver = number, .receivers = kExecutors, .senders = kExecutors}));
    std::jthread accepting([&] { must(receiver->accept_all(listeners[number], kTenSecondsNs)); });
    auto sender =
        must(verbena::open_shuffle_sender(device, domain, addresses, secret, {.sender = number}));
    accepting.join();

    // Every fourth order and customer is here; every second customer is of Berlin.
    std::vector<int64_t> berliners;
    std::vector<int64_t> customers;  // of each order
    std::vector<int64_t> prices;
    for (int64_t id = number; id < kOrders; id += kExecutors) {
      customers.push_back(id * 7 % kCustomers);
      prices.push_back(id);
      if (id < kCustomers && id % 2 == 0) berliners.push_back(id);
    }
    const verbena::PlainColumn columns[] = {{"customer", "l", customers.data()},
                                            {"price", "l", prices.data()}};
    const verbena::PlainColumn ids[] = {{"id", "l", berliners.data()}};
    ArrowArrayStream left;
    ArrowArrayStream right;
    ArrowArrayStream joined;
    verbena::stream_of_columns(prices.size(), columns, &left);
    verbena::stream_of_columns(berliners.size(), ids, &right);
    must(verbena::join_shuffled(&left, &right, {.keys = {{"customer", "id"}}},
                                {*sender, *receiver, &domain}, &joined));
    must(verbena::for_each_batch(&joined, [&](const ArrowArray& batch) {
      for (const int64_t price : verbena::plain_values<int64_t>(batch, 1)) sum += price;
      orders += batch.length;
    }));
  };
  std::vector<std::jthread> threads;
  for (uint32_t number = 0; number < kExecutors; ++number) threads.emplace_back(execute, number);
  threads.clear();  // waits for all
  std::cout << orders << " of " << kOrders << " orders are of customers in Berlin, for " << sum
            << " in all\n";
}
