// The injector of one opened device: stands between the caller and the device's own functions.
//
// It puts functions of its own into the context's data path (ibv_context::ops) and into the
// device's VerbsControl, by which it learns of each object. They find the injector by the context.
// Objects that it does not know (made by ibv_create_qp and the like) pass untouched.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "src/device/fault/faulty_completion_queue.h"
#include "src/device/fault/faulty_queue_pair.h"
#include "src/device/verbs_control.h"
#include "verbena/fault.h"
#include "verbena/status.h"

namespace verbena::fault {

class Injector {
 public:
  // Puts an injector in front of the device. From then on its objects are made by control(), and
  // uninstall() comes before the context is closed.
  static Result<Injector*> install(ibv_context* context, const VerbsControl& control,
                                   const FaultPlan& plan);
  static void uninstall(ibv_context* context);
  // The injector of a context, or null.
  static Injector* of(const ibv_context* context);

  const VerbsControl& control() const { return control_; }
  FaultCounts counts() const;

 private:
  // By the object's address.
  template <typename Verbs, typename Object>
  class Known {
   public:
    std::shared_ptr<Object> find(const Verbs* verbs) const {
      const std::shared_lock<std::shared_mutex> guard(mutex_);
      const auto found = objects_.find(verbs);
      return found == objects_.end() ? nullptr : found->second;
    }
    void add(const Verbs* verbs, std::shared_ptr<Object> object) {
      const std::unique_lock<std::shared_mutex> guard(mutex_);
      objects_[verbs] = std::move(object);
    }
    // Unless the device has given the address to another one by now.
    void remove(const Verbs* verbs, const std::shared_ptr<Object>& object) {
      const std::unique_lock<std::shared_mutex> guard(mutex_);
      const auto found = objects_.find(verbs);
      if (found != objects_.end() && found->second == object) objects_.erase(found);
    }

   private:
    mutable std::shared_mutex mutex_;
    std::unordered_map<const Verbs*, std::shared_ptr<Object>> objects_;
  };
  struct Verbs;  // the functions that stand before the device's

  Injector(ibv_context* context, const VerbsControl& control, const FaultPlan& plan);

  std::shared_ptr<FaultyQueuePair> queue_pair_of(const ibv_wc& completion) const;

  VerbsControl control_;
  Known<ibv_cq, FaultyCompletionQueue> completion_queues_;
  Known<ibv_srq, ReceiveDeferringQueue> shared_receives_;
  Known<ibv_qp, FaultyQueuePair> queue_pairs_;
  mutable std::shared_mutex numbers_mutex_;
  std::unordered_map<uint32_t, std::weak_ptr<FaultyQueuePair>> queue_pair_numbers_;
  std::atomic<uint64_t> next_completion_queue_{0};
  std::atomic<uint64_t> next_shared_receives_{0};
  std::atomic<uint64_t> next_queue_pair_{0};
  DeviceParts parts_;  // ends first: its thread uses the objects
};

}  // namespace verbena::fault
