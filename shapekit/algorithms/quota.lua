-- needs base
-- The twin of a rolling quota: its window, but a call without a `max_wait` does not wait for it. The twin of any
-- other quota is its period counter.

local RollingQuota = {}
twins["quota"] = RollingQuota

-- spec: its name, the window.
function RollingQuota.new(spec)
    local window = twin(spec[2])
    function window:spent(s, at, skew, cost)
        return self:earliest(s, at, skew, cost) > at
    end
    return window
end
