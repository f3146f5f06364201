-- needs queue/queue
-- A queue that an operator holds without end: each decision prolongs its hold.

local Held = {}
twins["queue/held"] = Held

do

local HELD = 2592000000000

-- spec: its name, and the spec of the queue.
function Held.new(spec)
    local queue = twin(spec[2])
    local reserve, follow = queue.reserve, queue.follow
    local function held(s, now, skew, nonce)
        if s and queue:confirm(s, now, skew)[3] >= now + HELD / 2 then return s end
        return (queue:hold(s, now, skew, HELD, nonce))
    end
    function queue:reserve(s, now, skew, cost, max_wait, nonce)
        return reserve(self, held(s, now, skew, nonce), now, skew, cost, max_wait, nonce)
    end
    function queue:reserve_run(s, now, skew, cost, max_wait, nonce, times)
        return one_by_one(self, self.reserve, times, s, now, skew, cost, max_wait, nonce)
    end
    function queue:follow(s, now, skew)
        return follow(self, s and held(s, now, skew, 0), now, skew)
    end
    return queue
end

end
